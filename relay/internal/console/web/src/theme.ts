export type Theme = 'system' | 'light' | 'dark';
const key = 'hubrelay-theme';

export function currentTheme(): Theme {
  try {
    const value = localStorage.getItem(key);
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

/** onThemeChange calls f after the colors of the page have changed. It returns a function that ends this. */
export function onThemeChange(f: () => void): () => void {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const observer = new MutationObserver(f);
  observer.observe(document.documentElement, { attributeFilter: ['data-theme'] });
  system.addEventListener('change', f);
  return () => {
    observer.disconnect();
    system.removeEventListener('change', f);
  };
}

export function applyTheme(theme: Theme = currentTheme()) {
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === 'system') localStorage.removeItem(key);
    else localStorage.setItem(key, theme);
  } catch {
    // Without storage, the theme lasts until the page is closed.
  }
}
