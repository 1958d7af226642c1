// Live updates: an element with data-live names a stream; each message says which element gets which content.
//
// Rule 1: a page that nobody sees listens to nothing: a browser keeps few connections to one host.
// Rule 2: who is writing is not disturbed: content with a field that has the focus is put there when it has lost it.

"use strict";

(() => {
  const late = new Map();

  function isWriting(element) {
    const field = document.activeElement;
    return element.contains(field) && field.matches("input, textarea, select");
  }

  function put(message) {
    const target = document.getElementById(message.id);
    if (!target) return;
    if (target.dataset.follow === "no") return;
    if (message.how === "innerHTML" && isWriting(target)) {
      late.set(message.id, message);
      return;
    }
    htmx.swap(target, message.html, { swapStyle: message.how, settleDelay: 0 });
  }

  function listen(element) {
    const said = document.getElementById("live");
    let source = null;
    let last = element.dataset.since || "";

    function open() {
      if (source || document.hidden) return;
      const url = new URL(element.dataset.live, location.href);
      if (last) url.searchParams.set("since", last);
      source = new EventSource(url);
      source.onopen = () => { said.textContent = "live"; };
      source.onerror = () => { said.textContent = "not live: the inspector does not answer"; };
      source.onmessage = (event) => {
        last = event.lastEventId || last;
        put(JSON.parse(event.data));
      };
    }

    function close() {
      if (source) source.close();
      source = null;
      said.textContent = "";
    }

    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    open();
  }

  document.addEventListener("focusout", () => {
    setTimeout(() => {
      for (const [id, message] of late) {
        late.delete(id);
        put(message);
      }
    });
  });

  // The slider says which moment it stands at, before it is there.
  document.addEventListener("input", (event) => {
    if (event.target.matches("#seq")) {
      const shown = document.querySelector("output[for=seq]");
      if (shown) shown.textContent = event.target.value;
    }
  });

  // How long ago something was goes on while the page stands there; the server says it in the same words.
  function age(seconds) {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
    }
    return `${Math.floor(seconds)} s`;
  }

  setInterval(() => {
    for (const time of document.querySelectorAll("time.age")) {
      const passed = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const said = age(Math.abs(passed)) + (time.matches(".for") ? "" : passed >= 0 ? " ago" : " from now");
      if (time.textContent !== said) time.textContent = said;
    }
  }, 1000);

  for (const element of document.querySelectorAll("[data-live]")) listen(element);
})();
