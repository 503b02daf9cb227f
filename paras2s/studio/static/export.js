// Starts a page of an export. A page that is opened from disk may import no file: its modules come as text in a script, and are
// imported from memory. Not a module itself, and no page of the server has it.

{
  const texts = new Map(), addresses = new Map();

  const addressOf = (name) => {
    if (!addresses.has(name)) {
      const code = globalThis.paras2sSite.modules[name].replace(/"module:([^"]+)"/g, (_, inner) => `"${addressOf(inner)}"`);
      addresses.set(name, URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    }
    return addresses.get(name);
  };

  globalThis.paras2sSite = {
    files: {},
    modules: {},
    /** A data file gives its text. */
    add(file, text) { texts.set(file, text); },
    take(file) {
      const text = texts.get(file);
      texts.delete(file);
      return text;
    },
  };

  // Scripts with `defer`, the index and the modules, have run by then.
  document.addEventListener("DOMContentLoaded", () => {
    for (const named of document.querySelectorAll("script[data-module]")) {
      // As elements, for which the page's `load` waits; it does not wait for `import()`, and the first keys were lost.
      const script = document.createElement("script");
      Object.assign(script, { type: "module", src: addressOf(named.dataset.module), async: false });
      document.head.append(script);
    }
  });
}
