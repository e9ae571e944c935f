import preact from '@preact/preset-vite';
import { defineConfig, type ProxyOptions } from 'vite';

// In development, the admin API of a running daemon is reached through a proxy that adds the token of the developer.
const target = process.env.HUBRELAY_ADMIN ?? 'http://127.0.0.1:9091';
const token = process.env.HUBRELAY_ADMIN_TOKEN;
const proxy: Record<string, ProxyOptions> = {
  '/api': {
    target,
    changeOrigin: true,
    // The proxy removes the headers by which the daemon rejects requests of other pages, so it rejects them itself.
    bypass: (request) =>
      ['same-origin', 'none'].includes(String(request.headers['sec-fetch-site'] ?? 'none')) ? undefined : false,
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    // The daemon rejects web pages of another origin, and the page of the proxy is one.
    configure: (p) =>
      p.on('proxyReq', (request) => {
        for (const name of ['origin', 'referer', 'sec-fetch-site']) request.removeHeader(name);
      }),
  },
};

export default defineConfig({
  base: './',
  plugins: [preact({ devToolsEnabled: false })],
  server: { proxy, host: '127.0.0.1' },
  preview: { proxy, host: '127.0.0.1' },
  build: {
    target: 'es2022',
    cssTarget: 'es2024',
    cssCodeSplit: false,
    modulePreload: false,
    sourcemap: false,
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      // The names have no hashes, because dist is committed. The daemon sends an ETag.
      output: { entryFileNames: 'console.js', assetFileNames: 'console[extname]', codeSplitting: false },
    },
  },
});
