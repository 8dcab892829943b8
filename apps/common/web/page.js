/* What the pages do in the browser: announce results, copy them, take pasted and
   dropped images, and save corrected tables. Gradio runs this function at the start. */
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

  // Rows of a table whose texts can be corrected, in the order of its columns.
  function rows(table) {
    const value = (cell) => cell.querySelector("textarea")?.value ?? cell.dataset.value;
    return [...table.querySelectorAll("tbody tr")].map((row) =>
      Object.fromEntries(
        [...row.querySelectorAll("[data-name]")].map((x) => [x.dataset.name, value(x)])
      )
    );
  }
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const literals = { true: true, false: false };
  const json = (row) => {
    const given = Object.entries(row).filter((x) => x[1]);
    return JSON.stringify(
      Object.fromEntries(given.map(([name, x]) => [name, name == "unsure" ? literals[x] : x]))
    );
  };
  const formats = {
    csv: (names, rows) => [names, ...rows.map(Object.values)].map((x) => x.map(quoted).join(",")),
    jsonl: (names, rows) => rows.map(json),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-save]");
    if (button) {
      const found = rows(button.closest(".ka-corrected").querySelector("table"));
      const [, suffix] = button.dataset.save.split(".");
      const lines = formats[suffix](Object.keys(found[0]), found);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(lines.map((x) => `${x}\n`)));
      link.download = button.dataset.save;
      link.click();
    }
  });
}
