/** A photograph from the camera of this device. */

import { element } from "./dom";

const QUALITY = 0.95;

/** Show what the camera sees in a dialog; the result is the photograph, if one is taken. */
export async function takePhotograph(): Promise<Blob | undefined> {
  let stream: MediaStream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: true });
  } catch (error) {
    const isRefused = (error as Error).name === "NotAllowedError";
    throw new Error(
      isRefused
        ? "The browser does not let this page use the camera."
        : "There is no camera that this page can use.",
    );
  }
  const video = element("video", { autoplay: "", muted: "", playsinline: "" });
  video.srcObject = stream;
  const take = element("button", { value: "take" }, "Take the photograph");
  const cancel = element("button", { value: "" }, "Cancel");
  const buttons = element("div", { class: "buttons" }, take, cancel);
  const form = element("form", { method: "dialog" }, video, buttons);
  const dialog = element("dialog", { "aria-label": "Camera" }, form);
  document.body.append(dialog);
  dialog.showModal();
  take.focus();
  await new Promise((resolve) => dialog.addEventListener("close", resolve));
  try {
    if (dialog.returnValue !== "take" || !video.videoWidth) return undefined;
    const canvas = element("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d")!.drawImage(video, 0, 0);
    return await new Promise<Blob | undefined>((resolve) =>
      canvas.toBlob((blob) => resolve(blob ?? undefined), "image/jpeg", QUALITY),
    );
  } finally {
    for (const track of stream.getTracks()) track.stop();
    dialog.remove();
  }
}
