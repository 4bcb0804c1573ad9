// What a person does with the chat: two pages, a message, and after a redeploy another
// one. node browser.cjs CHROMIUM RESOLVER-RULES PICTURE
const { chromium } = require("playwright-core");
const readline = require("node:readline");

const [executablePath, rules, picture] = process.argv.slice(2);
const timeout = 20_000;

async function main() {
	const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", `--host-resolver-rules=${rules}`] });
	try {
		const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 800, height: 600 } });
		context.setDefaultTimeout(timeout);
		const broken = [];
		const open = async (name) => {
			const page = await context.newPage();
			page.on("pageerror", (error) => broken.push(`${name}: ${error.message}`));
			const answer = await page.goto("https://chat.apps.test/#lobby");
			if (answer.status() !== 200) throw new Error(`the page answers ${answer.status()}`);
			await page.fill("#name", name);
			await page.press("#name", "Tab"); // the name is taken when it is left
			return page;
		};
		// A word is said again until it is there: the socket may be about to come back.
		const says = async (from, to, text) => {
			const heard = to.locator("#lines li", { hasText: text });
			for (const end = Date.now() + timeout; (await heard.count()) === 0; ) {
				if (Date.now() > end) throw new Error(`"${text}" does not arrive`);
				if ((await from.inputValue("#text")) === "") await from.fill("#text", text);
				await from.click("button");
				await to.waitForTimeout(250);
			}
		};
		const ada = await open("Ada");
		const bob = await open("Bob");
		await says(ada, bob, "Is anybody there?");
		await says(bob, ada, "I am, over HTTPS.");
		const protocol = await ada.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol);
		console.log(`talked over ${protocol}`);

		await new Promise((resolve) => readline.createInterface({ input: process.stdin }).once("line", resolve));
		await says(ada, bob, "Still here after the deploy.");
		await bob.reload();
		await bob.getByRole("heading", { name: "Chat, once more" }).waitFor();
		await bob.locator("#lines li", { hasText: "Still here after the deploy." }).first().waitFor();
		await bob.screenshot({ path: picture });
		if (broken.length > 0) throw new Error(broken.join("; "));
		console.log("talked again");
	} finally {
		await browser.close();
		process.stdin.unref();
	}
}

main().catch((error) => {
	console.error(error);
	process.exit(1);
});
