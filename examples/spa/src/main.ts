import "./style.css";

/** The pages by their addresses; each gives its text. */
const pages: Record<string, () => Promise<string>> = {
  "/": async () => "A page built by Vite, and an API beside it.",
  "/clock": async () => {
    const answer = await fetch("/api/time");
    const { now } = (await answer.json()) as { now: string };
    return `The Worker's time: ${now}`;
  },
};

async function show(): Promise<void> {
  const main = document.querySelector("main");
  if (!main) return;
  const page = pages[location.pathname];
  main.textContent = page ? await page() : "No such page.";
}

// A click on a link changes the address without loading the page anew.
document.addEventListener("click", (event) => {
  const link = (event.target as Element).closest("a");
  if (!link || link.origin !== location.origin) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  void show();
});
addEventListener("popstate", () => void show());
void show();
