"""Other clients, unchanged: LangChain's ChatOpenAI.

usage: clients_test.py SUB8 MODEL_DIR
"""
import sys
import unittest

try:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI, OpenAI
except ImportError:
    ChatOpenAI = None
from serving import Server

BINARY, MODEL = sys.argv[1], sys.argv[2]


@unittest.skipIf(ChatOpenAI is None, "langchain-openai is not installed")
class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL, ["--served-model-name", "tiny", "--api-key", "secret"])
        cls.server.__enter__()
        cls.common = {"model": "tiny", "base_url": cls.server.url + "/v1", "api_key": "secret", "max_retries": 0, "seed": 7, "temperature": 0.8}

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_invoke_and_stream(self):
        chat = ChatOpenAI(**self.common, max_tokens=12)
        messages = [SystemMessage("Be kind."), HumanMessage("Hello"), AIMessage("Hi"), HumanMessage("And?")]
        whole = chat.invoke(messages)
        self.assertIn(whole.response_metadata["finish_reason"], ("stop", "length"))
        self.assertLessEqual(whole.usage_metadata["output_tokens"], 12)
        pieces = list(chat.stream(messages, stream_usage=True))
        self.assertEqual("".join(p.content for p in pieces), whole.content)
        self.assertEqual(sum(p.usage_metadata["output_tokens"] for p in pieces if p.usage_metadata), whole.usage_metadata["output_tokens"])

    def test_batch_and_logprobs(self):
        chat = ChatOpenAI(**self.common, max_tokens=5).bind(logprobs=True, top_logprobs=2)
        replies = chat.batch([[HumanMessage(f"Number {i}")] for i in range(6)])
        for reply in replies:
            for token in reply.response_metadata["logprobs"]["content"]:
                self.assertEqual(len(token["top_logprobs"]), 2)

    def test_tools_are_passed(self):
        tool = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        reply = ChatOpenAI(**self.common, max_tokens=5).bind_tools([tool]).invoke([HumanMessage("Weather?")])
        self.assertIsInstance(reply.tool_calls, list)

    def test_completions(self):
        self.assertIsInstance(OpenAI(**self.common, max_tokens=8).invoke("Once upon"), str)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
