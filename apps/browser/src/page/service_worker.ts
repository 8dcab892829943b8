/**
 * Keeps the page, the runtime and the models that were used, so that the page works
 * offline. A file is fetched again only when its content has changed.
 */

/** Path of every file of the page, and the hash of its content; set by the build. */
declare const FILES: Record<string, string>;
/** Files that are kept when the page is first opened; the others when they are used. */
declare const FIRST: string[];

const CACHE = "keras-attention";
const scope = new URL("./", location.href);
const worker = self as any;

const address = (path: string) => new URL(path, scope).href;
const key = (path: string) => `${address(path)}?${FILES[path]}`;

worker.addEventListener("install", (event: any) => {
  worker.skipWaiting();
  event.waitUntil(Promise.all(FIRST.map((path) => fetched(path, event))));
});

worker.addEventListener("activate", (event: any) => {
  event.waitUntil(forgetOld().then(() => worker.clients.claim()));
});

worker.addEventListener("fetch", (event: any) => {
  const url = new URL(event.request.url);
  if (!url.href.startsWith(scope.href) || event.request.method !== "GET") return;
  const path = url.pathname.slice(scope.pathname.length) || "index.html";
  if (path in FILES) event.respondWith(fetched(path, event));
});

/** Return a file from the cache, or from the server, and keep it. */
async function fetched(path: string, event: any): Promise<Response> {
  const cache = await caches.open(CACHE);
  const cached = await cache.match(key(path));
  if (cached) return cached;
  const response = await fetch(address(path), { cache: "no-cache" });
  if (response.ok) {
    const stored = cache.put(key(path), response.clone());
    // A browser that is short of space still shows the page.
    event.waitUntil(stored.catch(() => {}));
  }
  return response;
}

async function forgetOld() {
  const cache = await caches.open(CACHE);
  const current = new Set(Object.keys(FILES).map(key));
  for (const request of await cache.keys()) {
    if (!current.has(request.url)) await cache.delete(request);
  }
}

export {};
