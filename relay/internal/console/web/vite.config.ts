import preact from '@preact/preset-vite';
import { defineConfig } from 'vite';

// In development, the admin API of a running daemon is reached through a proxy that adds the token of the developer.
const target = process.env.HUBRELAY_ADMIN ?? 'http://127.0.0.1:9091';
const token = process.env.HUBRELAY_ADMIN_TOKEN;
const proxy = { '/api': { target, headers: token ? { Authorization: `Bearer ${token}` } : {} } };

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
