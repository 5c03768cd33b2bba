import { render } from "preact";
import { App } from "./App";
import "./style/tokens.css";
import "./style/base.css";
import "./style/shell.css";
import "./style/parts.css";
import "./style/sequence.css";
import "./style/pages.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
