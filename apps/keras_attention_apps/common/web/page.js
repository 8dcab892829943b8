/* What the pages do in the browser: announce results, copy them, and take pasted and
   dropped images. Gradio runs this function at the start. */
() => {
  const status = document.createElement("p");
  status.className = "ka-hidden";
  status.setAttribute("role", "status");
  document.body.append(status);

  // A screen reader reads an element with role "status" when its text changes.
  function announce(text) {
    status.textContent = "";
    setTimeout(() => (status.textContent = text), 100);
  }
  new MutationObserver(() => {
    const results = [...document.querySelectorAll("[data-announce]")];
    const found = results.filter((x) => x.dataset.announce);
    if (found.length) {
      announce(found.map((x) => x.dataset.announce).join(" "));
    }
    found.forEach((x) => (x.dataset.announce = ""));
  }).observe(document.body, { childList: true, subtree: true });

  async function copy(text) {
    if (navigator.clipboard) {
      return navigator.clipboard.writeText(text);
    }
    // Pages without HTTPS from another computer have no clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      await copy(button.dataset.copy);
      button.textContent = "Copied";
      announce("Copied");
      setTimeout(() => (button.textContent = "Copy"), 2000);
    }
  });

  // Gradio has a button for pasting, and replaces no image by another one.
  const box = document.querySelector(".ka-upload");
  function upload(files) {
    const image = [...files].find((x) => x.type.startsWith("image/"));
    const input = box?.querySelector("input[type=file]");
    if (image && input) {
      const chosen = new DataTransfer();
      chosen.items.add(image);
      input.files = chosen.files;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
  }
  document.addEventListener("paste", (event) => upload(event.clipboardData.files));
  const shows = () => box.querySelector("img");
  box?.addEventListener("dragover", (event) => shows() && event.preventDefault());
  box?.addEventListener("drop", (event) => {
    if (shows()) {
      event.preventDefault();
      upload(event.dataTransfer.files);
    }
  });
}
