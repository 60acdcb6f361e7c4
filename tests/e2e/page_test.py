"""The page in headless Chromium, driven through chromedriver.

usage: page_test.py SUB8 MODEL_DIR [SCREENSHOT_DIR]
"""
import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from serving import Server

BINARY, MODEL = sys.argv[1], sys.argv[2]
SCREENSHOTS = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ESCAPE, ENTER, TAB, RIGHT = "\ue00c", "\ue007", "\ue004", "\ue014"


class Browser:
    """The little of WebDriver that this needs."""

    def __init__(self, width, height, dark=False):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.rsplit("port", 1)[1].strip().rstrip(".")
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                     f"--window-size={width},{height}"]
        if dark:
            arguments.append("--force-dark-mode")
        mobile = {"mobileEmulation": {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1}}} if width < 500 else {}
        capabilities = {"goog:chromeOptions": {"args": arguments, **mobile}, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.session = None
        value = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = "/session/" + value["sessionId"]

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()}") from None

    def go(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", self.session + "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"{self.session}/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"{self.session}/element/{self.find(selector)}/value", {"text": text})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def until(self, script, *arguments, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; status: {self.text('#status')}")

    def log(self, kind):
        return self.call("POST", self.session + "/se/log", {"type": kind})

    def screenshot(self, name):
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def close(self):
        if self.session:
            self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()


@unittest.skipUnless(shutil.which("chromedriver"), "chromium-driver is not installed")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL, ["--served-model-name", "tiny"])
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self, size="desktop", **options):
        browser = Browser(*SIZES[size], **options)
        self.addCleanup(browser.close)
        browser.go(self.server.url + "/")
        browser.until("return document.querySelector('#mode').options.length > 0")
        return browser

    def ask(self, browser, text):
        browser.type("#prompt", text + ENTER)
        browser.until("return document.querySelector('#stop').disabled && document.querySelectorAll('.message.assistant').length > 0")

    def test_chat(self):
        for size in SIZES:
            browser = self.open(size)
            self.assertIn("tiny", browser.text("#model"))
            self.assertIn("mode", browser.text("#model"))
            browser.run("document.querySelector('#max-tokens').value = 20; document.querySelector('#seed').value = 1;")
            browser.screenshot(f"{size}-empty")
            self.ask(browser, "Hello there")
            self.assertIn("tokens/s", browser.text(".message.assistant .facts"))
            self.assertIn("Answer complete", browser.text("#status"))
            first = browser.text(".message.assistant p")
            browser.click("#retry")
            browser.until("return document.querySelector('#status').textContent.startsWith('Answer complete')")
            self.assertEqual(browser.text(".message.assistant p"), first, "the same seed gives the same answer")
            self.assertEqual(browser.run("return document.querySelectorAll('.message.assistant').length"), 1)
            self.ask(browser, "And more?")
            self.assertEqual(browser.run("return document.querySelectorAll('.message').length"), 4)
            browser.until("return document.querySelector('#m-kv').textContent.includes('%')")
            browser.until("return document.querySelector('#m-rate').textContent !== '–'")
            browser.screenshot(f"{size}-chat")
            self.assertFalse(browser.run("return document.documentElement.scrollWidth > window.innerWidth"), "no sideways scrolling")
            browser.click("#settings summary")
            browser.screenshot(f"{size}-settings")
            browser.click("#settings summary")
            browser.click("#clear")
            self.assertEqual(browser.run("return document.querySelectorAll('.message').length"), 0)
            errors = [entry["message"] for entry in browser.log("browser") if entry["level"] == "SEVERE"]
            self.assertEqual(errors, [])

    def test_nothing_overlaps(self):
        for size in SIZES:
            browser = self.open(size)
            browser.run("document.querySelector('#settings').open = true")
            for tab, view in (("#tab-chat", "#view-chat"), ("#tab-compare", "#view-compare")):
                browser.click(tab)
                overlaps = browser.run("""
                  const parts = [...document.querySelectorAll(arguments[0] + ' button, ' + arguments[0] + ' .answer, ' + arguments[0] +
                    ' select, ' + arguments[0] + ' textarea, #settings')].map((e) => [e.id || e.className, e.getBoundingClientRect()]);
                  const out = [];
                  for (const [a, r] of parts) for (const [b, q] of parts)
                    if (a < b && r.left < q.right && q.left < r.right && r.top < q.bottom - 1 && q.top < r.bottom - 1) out.push(a + ' ' + b);
                  return out;""", view)
                self.assertEqual(overlaps, [], size + tab)
            # What scrolls the page stands at the window's edge.
            self.assertEqual(browser.run("return document.querySelector('main').getBoundingClientRect().right"),
                             browser.run("return window.innerWidth"))

    def test_stop(self):
        browser = self.open()
        # The model's context is short, so the answer is made slow by asking for it in the network layer.
        browser.run("""
          const real = window.fetch;
          window.fetch = async (url, options) => {
            if (!String(url).includes('chat')) return real(url, options);
            const body = new ReadableStream({ start(controller) {
              const piece = 'data: ' + JSON.stringify({choices: [{index: 0, delta: {content: 'word '}, finish_reason: null}], usage: {completion_tokens: 1}}) + '\\n\\n';
              controller.enqueue(new TextEncoder().encode(piece));
              options.signal.addEventListener('abort', () => controller.error(new DOMException('stopped', 'AbortError')));
            } });
            return new Response(body, { status: 200 });
          };""")
        browser.type("#prompt", "Go on for ever" + ENTER)
        browser.until("return document.querySelector('.message.assistant p').textContent === 'word '")
        self.assertTrue(browser.run("return document.querySelector('#send').disabled"))
        browser.type("#prompt", ESCAPE)
        browser.until("return document.querySelector('#status').textContent === 'Stopped.'")
        self.assertEqual(browser.text(".message.assistant p"), "word ")

    def test_compare(self):
        for size in SIZES:
            browser = self.open(size)
            browser.run("document.querySelector('#max-tokens').value = 16")
            browser.run("document.querySelector('#tab-chat').focus()")
            browser.type("#tab-chat", RIGHT)
            self.assertTrue(browser.run("return document.querySelector('#view-chat').hidden"))
            self.assertEqual(browser.run("return document.activeElement.id"), "tab-compare")
            browser.run("document.querySelector('#right-mode').value = document.querySelector('#left-mode').value")
            self.assertEqual(browser.text("#status"), "")  # nothing of the other view's
            browser.click("#compare-run")
            browser.until("return document.querySelector('#compare-verdict').textContent.includes('same')")
            self.assertEqual(browser.text("#left-text"), browser.text("#right-text"))
            browser.screenshot(f"{size}-compare")
            self.assertFalse(browser.run("return document.documentElement.scrollWidth > window.innerWidth"))

    def test_compare_two_modes(self):
        with tempfile.TemporaryDirectory() as folder:
            model = folder + "/nvfp4"
            subprocess.run([BINARY, "quantize", MODEL, model, "--weights", "nvfp4"], check=True, capture_output=True)
            with Server(BINARY, model) as server:
                browser = Browser(*SIZES["desktop"])
                self.addCleanup(browser.close)
                browser.go(server.url + "/")
                browser.until("return document.querySelector('#mode').options.length > 4")
                browser.click("#tab-compare")
                browser.run("document.querySelector('#max-tokens').value = 24")
                sides = [browser.run(f"return document.querySelector('#{side}-mode').value") for side in ("left", "right")]
                self.assertEqual(sides, ["weight-only", "plain"])
                browser.click("#compare-run")
                browser.until("return document.querySelector('#compare-verdict').textContent.includes('in their first')")
                self.assertNotEqual(browser.text("#left-text"), browser.text("#right-text"))
                for side in ("left", "right"):
                    self.assertIn("tokens/s", browser.text(f"#{side}-facts"))
                browser.screenshot("desktop-two-modes")

    def test_errors_are_shown(self):
        browser = self.open()
        browser.run("document.querySelector('#max-tokens').value = -5")
        self.ask(browser, "Hello")
        self.assertIn("max_completion_tokens", browser.text("#status"))
        browser.screenshot("desktop-error")

    def test_dark_and_names(self):
        browser = self.open(dark=True)
        self.assertTrue(browser.run("return matchMedia('(prefers-color-scheme: dark)').matches"))
        browser.run("document.querySelector('#max-tokens').value = 12")
        self.ask(browser, "Hello")
        browser.screenshot("desktop-dark")
        # Every control has a name that a screen reader can say.
        nameless = browser.run("""
          return [...document.querySelectorAll('input, select, textarea, button')].filter((e) => {
            const label = e.labels && e.labels.length > 0 ? e.labels[0].textContent : '';
            return !(label.trim() || e.getAttribute('aria-label') || e.textContent.trim() && e.tagName === 'BUTTON');
          }).map((e) => e.id);""")
        self.assertEqual(nameless, [])

    def test_no_request_leaves_the_server(self):
        browser = self.open()
        browser.run("document.querySelector('#max-tokens').value = 4")
        self.ask(browser, "Hello")
        urls = []
        for entry in browser.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        self.assertGreater(len(urls), 3)
        for url in urls:
            self.assertTrue(url.startswith((self.server.url, "data:")), url)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
