"""The page of apps/browser in Chromium, beside Python's LiteRT with one thread.

    python benchmarks/browser.py --images FOLDER --sentences FILE

Build the page first: see apps/browser/README.md. The figures of both tools are the
bytes that a local server sends and the seconds until the first result, on a first visit
and on a second one. They are followed by the seconds per photograph and per sentence,
for which browser and Python take turns, and the peak memory of the tab. Both run the
file that the page contains. The results are compared: equal texts, and the largest
difference of scores. `--isolated` sends the headers with which the page uses threads.

`--captions 100` captions that number of photographs in one tab instead, and prints its
memory after every tenth of them, so that memory that is not freed shows.
"""

import argparse
import base64
import contextlib
import functools
import http.server
import json
import os
import shutil
import statistics
import threading
import time
from pathlib import Path

from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.nmt import LiteTranslator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build" / "browser"
ISOLATION = (
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Embedder-Policy", "require-corp"),
)
# How the first result of each tool is asked for, and where it appears.
TOOLS = {
    "captioner": ("#sample", "#captioner h2"),
    "translator": ("#examples button", "#translator h2"),
}
# Runs the model of a page on an input: a text, or an image in base64.
RUN = """async ([kind, input]) => {
    const {load} = await import("/keras-attention.js");
    globalThis.models ??= {};
    const model = globalThis.models[kind] ??= await load(`/models/${kind}.tflite`);
    const isImage = kind == "captioner";
    const address = `data:image/jpeg;base64,${input}`;
    const given = isImage ? await (await fetch(address)).blob() : input;
    const start = performance.now();
    const [best] = await (isImage ? model.caption(given) : model.translate(given));
    return [(performance.now() - start) / 1000, best.text, best.score];
}"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page, and counts the bytes of the files."""

    protocol_version = "HTTP/1.1"
    # The same for all requests.
    fixed_headers = ()
    sent = 0

    def end_headers(self):
        for name, value in self.fixed_headers:
            self.send_header(name, value)
        super().end_headers()

    def copyfile(self, source, outputfile):
        Handler.sent += Path(source.name).stat().st_size
        super().copyfile(source, outputfile)

    def log_message(self, *arguments):
        pass


def serve(headers):
    """Serve the page in threads, and return its address."""
    Handler.fixed_headers = headers
    handler = functools.partial(Handler, directory=PAGE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def first_result(context, address, kind):
    """Return the megabytes and the seconds until the first result of a visit."""
    button, result = TOOLS[kind]
    page = context.new_page()
    Handler.sent = 0
    start = time.perf_counter()
    page.goto(f"{address}/#{kind}")
    page.click(button)
    page.wait_for_selector(result, timeout=120_000)
    seconds = time.perf_counter() - start
    # What is kept for later is written behind the result.
    page.wait_for_timeout(1000)
    page.close()
    return Handler.sent / 1e6, seconds


def visits(browser, address, kind, rounds):
    """Return the medians of first visits and of second ones."""
    results = {"first visit": [], "second visit": []}
    for _ in range(rounds):
        context = browser.new_context()
        for visit in results.values():
            visit.append(first_result(context, address, kind))
        context.close()
    return {
        name: {
            "megabytes": statistics.median(megabytes for megabytes, _ in visit),
            "seconds": statistics.median(seconds for _, seconds in visit),
        }
        for name, visit in results.items()
    }


def take_turns(page, kind, inputs, run_python):
    """Run all inputs in the browser and in Python; return times and comparison."""
    times = {"browser": [], "Python": []}
    equal, difference, others = 0, 0.0, []
    for item in inputs:
        is_path = isinstance(item, Path)
        sent = base64.b64encode(item.read_bytes()).decode() if is_path else item
        seconds, text, score = page.evaluate(RUN, [kind, sent])
        times["browser"].append(seconds)
        start = time.perf_counter()
        expected = run_python(item)
        times["Python"].append(time.perf_counter() - start)
        if text == expected.text:
            equal += 1
            difference = max(difference, abs(score - expected.score))
        else:
            others.append([str(item), text, expected.text])
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "seconds": medians,
        "ratio": medians["browser"] / medians["Python"],
        "equal": f"{equal} of {len(inputs)}",
        "largest difference of equal ones": difference,
        "different": others,
    }


def caption_many(browser, address, images, count):
    """Return the memory of a tab in megabytes after each tenth of some captions.

    What is no longer used is collected before the memory is measured.
    """
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    page.goto(f"{address}/#captioner")
    memory = {}
    for number in range(1, count + 1):
        page.set_input_files("#photo", images[number % len(images)])
        page.wait_for_selector("#captioner .result[aria-busy]", state="attached")
        page.wait_for_selector(
            "#captioner .result:not([aria-busy])", state="attached", timeout=120_000
        )
        page.locator("#captioner h2").wait_for()
        if number % max(count // 10, 1) == 0:
            session.send("HeapProfiler.collectGarbage")
            memory[number] = tab_memory("VmRSS")
    memory["peak"] = tab_memory()
    page.close()
    return memory


def tab_memory(kind="VmHWM"):
    """Return the memory of the largest tab in MB: its peak, or with `"VmRSS"` now."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (folder / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            command = (folder / "cmdline").read_bytes()
            processes[int(folder.name)] = int(status["PPid"]), command, status

    def is_ours(process):
        while process in processes and process != os.getpid():
            process = processes[process][0]
        return process == os.getpid()

    return max(
        int(status[kind].split()[0]) / 1000
        for process, (_, command, status) in processes.items()
        if b"--type=renderer" in command and is_ours(process)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, nargs="*", default=[])
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--count", type=int, help="images and sentences, each")
    parser.add_argument("--rounds", type=int, default=3, help="of the visits")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--captions", type=int, help="in one tab, to see its memory")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    address = serve(ISOLATION if options.isolated else ())
    images = [
        path
        for folder in options.images or [ROOT / "docs"]
        for path in sorted(folder.glob("*.jpg"))[: options.count]
    ]
    lines = ["Two dogs are playing in the snow."]
    if options.sentences:
        lines = options.sentences.read_text(encoding="utf-8").splitlines()
    captioner, translator = (
        kind(PAGE / f"models/{name}.tflite", threads=1)
        for name, kind in [
            ("captioner", LiteCaptioner),
            ("translator", LiteTranslator),
        ]
    )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        if options.captions:
            print(json.dumps(caption_many(browser, address, images, options.captions)))
            return
        report = {
            kind: visits(browser, address, kind, options.rounds) for kind in TOOLS
        }
        runs = [
            ("captioner", images, captioner.caption),
            ("translator", lines[: options.count], translator.translate),
        ]
        for kind, inputs, run_python in runs:
            page = browser.new_page()
            page.goto(f"{address}/LICENSES.txt")
            # The first results include loading, and code that is not yet optimised.
            for item in inputs[:3]:
                take_turns(page, kind, [item], run_python)
            report[kind] |= take_turns(page, kind, inputs, run_python)
            report[kind]["peak memory of the tab in MB"] = tab_memory()
            page.close()
        browser.close()
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
