// The console works without this script; it adds keys, live pages, relative times and the choice of colours.
'use strict';
(() => {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage; } catch { return null; } })();
  const chosen = kept && kept.getItem('pgonce-theme');
  if (chosen === 'dark' || chosen === 'light') root.dataset.theme = chosen;

  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.getElementById('theme')?.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    kept?.setItem('pgonce-theme', root.dataset.theme);
  });

  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const relative = (at) => {
    const seconds = Math.round((Date.now() - at) / 1000);
    const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) || units[3];
    const count = Math.floor(Math.abs(seconds) / length);
    return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
  };
  const times = () => {
    for (const time of document.querySelectorAll('main time[datetime]')) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      let small = time.querySelector('small');
      if (!small) { small = document.createElement('small'); time.append(' ', small); }
      small.textContent = relative(at);
    }
  };

  // Live: the page itself, fetched again. Never while somebody reads a form, a selection or another tab.
  const live = document.getElementById('live');
  const banner = document.getElementById('banner');
  const busy = () => document.hidden || String(getSelection()) !== '' ||
    document.querySelector('main details[open], main .here') || document.activeElement?.closest('main input, main form');
  let failures = 0;
  let stale = false;
  const isOn = () => live && live.getAttribute('aria-pressed') === 'true';
  const refresh = async () => {
    if (!isOn()) return;
    if (busy()) { stale = true; return; }
    stale = false;
    try {
      const answer = await fetch(location.href, { credentials: 'same-origin' });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
      const fresh = page.querySelector('main');
      if (fresh && !busy()) { document.querySelector('main').replaceChildren(...fresh.childNodes); times(); named(); }
      failures = 0; banner.hidden = true;
    } catch {
      failures += 1;
      if (failures > 1) { banner.textContent = 'No answer: what you see may be old.'; banner.hidden = false; }
    }
  };
  // The server says when something changed. Where it cannot, the page is fetched every five seconds; a hidden tab asks for nothing.
  const source = document.currentScript.src.replace(/assets\/app\.js$/, 'events');
  let stream = null;
  const listen = () => {
    if (!isOn() || document.hidden) { stream?.close(); stream = null; return; }
    if (stream && stream.readyState !== EventSource.CLOSED) return;
    stream = new EventSource(source);
    stream.addEventListener('changed', refresh);
  };
  document.addEventListener('visibilitychange', () => { listen(); if (!document.hidden) refresh(); });
  const toggle = () => {
    if (!live) return;
    const on = live.getAttribute('aria-pressed') !== 'true';
    live.setAttribute('aria-pressed', String(on));
    live.textContent = on ? 'Live' : 'Paused';
    listen();
    refresh();
  };
  live?.addEventListener('click', toggle);
  listen();
  setInterval(() => {
    listen();
    if (stale || stream?.readyState !== EventSource.OPEN) refresh();
  }, 5000);
  setInterval(times, 10000);
  times();

  // Commands for a terminal name this console as the browser does.
  const named = () => {
    for (const button of document.querySelectorAll('[data-copy*="$CONSOLE"]')) {
      button.dataset.copy = button.dataset.copy.replace('$CONSOLE', location.origin);
      button.previousElementSibling.textContent = button.dataset.copy;
    }
  };
  named();
  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = 'Copied'; } catch { button.textContent = 'Select it by hand'; }
  });
  // A second click while the first is under way would act twice.
  document.addEventListener('submit', (event) => {
    const form = event.target;
    if (form.method !== 'post') return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = 'yes';
  });

  const rows = () => [...document.querySelectorAll('main tbody tr')];
  const move = (step) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains('here'));
    const next = Math.min(all.length - 1, Math.max(0, at + step));
    all[at]?.classList.remove('here');
    all[next].classList.add('here');
    all[next].scrollIntoView({ block: 'nearest' });
  };
  let going = false;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.('input, textarea, select');
    if (typing) { if (event.key === 'Escape') event.target.blur(); return; }
    if (going) {
      going = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    switch (event.key) {
      case '/': event.preventDefault(); document.getElementById('find')?.select(); break;
      case 'g': going = true; break;
      case 'j': move(1); break;
      case 'k': move(-1); break;
      case 'Enter': if (event.target === document.body) document.querySelector('main tr.here a')?.click(); break;
      case 'Escape': document.querySelector('main tr.here')?.classList.remove('here'); break;
      case 'r': toggle(); break;
      case '?': document.getElementById('help')?.showModal(); break;
    }
  });
})();
