import { defineConfig } from "vite";

// Fixed names: the hub serves the assets with an ETag, and a fixed name keeps the history of the built files readable.
export default defineConfig({
  base: "/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/dragoman/api/dashboard",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rolldownOptions: {
      output: {
        entryFileNames: "assets/app.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/app[extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8420", "/openapi.json": "http://127.0.0.1:8420" } },
});
