import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, post } from "../api/client";
import { enter } from "../session";
import { ErrorBox } from "../ui/parts";

export function Login() {
  const token = useSignal("");
  const error = useSignal<unknown>(null);
  const provider = useSignal<string | null>(null);
  useEffect(() => {
    get<{ provider: string | null }>("/login").then(
      (ways) => (provider.value = ways.provider),
      () => {},
    );
  }, []);
  return (
    <main class="login">
      <form
        class="card"
        onSubmit={async (event) => {
          event.preventDefault();
          try {
            await post("/login", { token: token.value.trim() });
            token.value = "";
            await enter();
          } catch (problem) {
            error.value = problem;
          }
        }}
      >
        <header>
          <img src="/favicon.svg" alt="" width="28" height="28" />
          <h1>Dragoman</h1>
        </header>
        <div class="body stack">
          {provider.value ? (
            <a class="button primary" href="/oidc/login" target="_self" data-testid="login-provider">
              Log in with {new URL(provider.value).host}
            </a>
          ) : null}
          <p class="muted">
            Open the link that the hub printed when it started, or make one with <code>dragoman user login NAME</code>.
          </p>
          <label class="stack-s">
            Or log in with a token
            <input
              class="field"
              type="password"
              autocomplete="off"
              required
              value={token.value}
              onInput={(event) => (token.value = event.currentTarget.value)}
            />
          </label>
          {error.value ? <ErrorBox error={error.value} /> : null}
          <button type="submit" class="button primary">
            Log in
          </button>
        </div>
      </form>
    </main>
  );
}
