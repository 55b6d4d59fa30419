"""Credentials in text: what is hidden, and what is left to read."""

import json

import pytest

from marin_dagster.cache.secrets import scrub, scrub_arguments

S = "s3cr3t"
JSON_WEB_TOKEN = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.{S}"

TEXTS = {
    f"https://user:{S}@example.org/x": "https://example.org/x",
    f"https://{S}@example.org/x": "https://example.org/x",
    f"https://user:p@{S}@example.org/x": "https://example.org/x",
    f"postgresql://u:{S}/with/slash@db/dagster": "postgresql://db/dagster",
    f"postgresql://u:pa@ss/{S}@db/dagster": "postgresql://db/dagster",
    f"https://blob/x?sv=1&sig={S}&se=2": "https://blob/x?sv=1&sig=***&se=2",
    f"https://s3/x?X-Amz-Signature={S}": "https://s3/x?X-Amz-Signature=***",
    f"HF_TOKEN={S} python x.py": "HF_TOKEN=*** python x.py",
    f"password: {S}\nport: 5432": "password: ***\nport: 5432",
    f'{{"password": "two {S}", "port": 1}}': '{"password": ***, "port": 1}',
    f'{{"password": "a\\"{S}"}}': '{"password": ***}',
    f'password: "two {S}': "password: ***",
    f"partial(f, api_key='{S}', size=3)": "partial(f, api_key=***, size=3)",
    f'password=b"{S}"': "password=***",
    f"password=SecretStr('{S}'), n=1": "password=***, n=1",
    f'password="""{S}""" x': "password=*** x",
    f'password="a"{S}': "password=***",
    f"password=a'{S} b' x": "password=*** x",
    f"""password='a'"'"'{S}' x""": "password=*** x",
    f"password=a\\{S} x": "password=*** x",
    f'passwords=["a", "{S}"], n=1': "passwords=***, n=1",
    f'secrets={{"db": ["a]", ("b", "{S}")]}}, n=1': "secrets=***, n=1",
    f"passwords=['a', {S}": "passwords=***",
    f"credentials=('me', '{S}') x": "credentials=*** x",
    f"[('password', '{S}'), ('n', 1)]": "[('password', ***), ('n', 1)]",
    f'["--token", "{S}"]': '["--token", ***]',
    f"""cfg='{{"password": "a\\\\"{S}"}}'""": "cfg='{\"password\": ***}'",
    f"secrets:\n  db: {S}\n  x: {S}\nport: 1": "secrets:***\nport: 1",
    f'password=\n"{S}"': "password=\n***",
    f"passwords:\n- a\n- {S}\nport: 1": "passwords:***\nport: 1",
    f"https://x/?auth={S}&a=1": "https://x/?auth=***&a=1",
    f"postgresql://db/x?dbPass={S}&a=1": "postgresql://db/x?dbPass=***&a=1",
    f"https://x/?key={S}&a=1": "https://x/?key=***&a=1",
    f"https://x/?a=1&key={S}": "https://x/?a=1&key=***",
    f"train --db-pass {S} --fast": "train --db-pass *** --fast",
    f"train --token '{S} x' --fast": "train --token *** --fast",
    f"curl -u me:{S} x": "curl -u me:*** x",
    f"curl --user me:{S} x": "curl --user me:*** x",
    f"a=1\npass: {S}": "a=1\npass: ***",
    **{
        f"{name}={S} x": f"{name}=*** x"
        for name in (
            *("pass", "db_pass", "dbPass", "db2Pw", "auth", "httpAuth", "pw", "secret_key_base"),
            *("secret_value", "secret_id"),
            *("token_id", "WANDB_KEY", "auth_tokens", "private_keys"),
        )
    },
    f"Authorization: Bearer {S}": "Authorization: Bearer ***",
    f"curl with Bearer {S * 4}": "curl with Bearer ***",
    f"AccountKey={S}==;x": "AccountKey=***",
    f"hf_{S}{'a' * 30}": "***",
    f"x ghp_{S}{'a' * 30} y": "x *** y",
    f"sk-ant-{S}-{'a' * 20}": "***",
    f"xoxb-1234567890-{S}": "***",
    JSON_WEB_TOKEN: "***",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----": "***",
    f"-----BEGIN PRIVATE KEY-----\n{S}": "***",
}


@pytest.mark.parametrize(("text", "clean"), TEXTS.items(), ids=range(len(TEXTS)))
def test_a_credential_in_a_text_is_hidden(text: str, clean: str) -> None:
    assert scrub(text) == clean
    quoted = scrub(json.dumps({"text": text}))
    assert S not in quoted
    assert S not in scrub(json.dumps({"text": quoted}))


LEFT = [
    "git@github.com:org/pipeline.git",
    "https://example.org:8080/path@v1",
    "git+https://github.com/org/repo@v1.2",
    "--tokenizer gpt2 --max_tokens=100",
    "tokenizer=gpt2, max_tokens=512, num_tokens=9",
    "bypass=on compass=north author=me key=name sort_key=date",
    "eos_token_id=[1, 2], pad_token_id=None, token_id=-1",
    "auth=/etc/auth credentials=~/key.json token=gs://bucket/key CACHE_KEY=12",
    "first pass, then --user me and --user 1000:1000",
    "password:\nport: 5432",
    "password=",
    "PWD=/home/me",
    "eos_token: </s>",
    "task-with-a-long-name-and-1-number sk-learn",
    "<function f at 0x7f0123456789>",
    "9f1c6f77a0b1c2d3e4f59f1c6f77a0b1c2d3e4f5",
]


@pytest.mark.parametrize("text", LEFT)
def test_what_is_no_credential_is_left(text: str) -> None:
    assert scrub(text) == text


CONFIG = f"event_log_storage:\n  password: {S}\n"
COMMANDS = {
    ("x.py", "--password", S, "--fast"): ("x.py", "--password", "***", "--fast"),
    ("x.py", "--db-password", f"-{S}"): ("x.py", "--db-password", "***"),
    ("x.py", f"--api-key={S} {S}"): ("x.py", "--api-key=***"),
    ("x.py", f"wandb.api_key={S}"): ("x.py", "wandb.api_key=***"),
    ("x.py", "--token", S, "a"): ("x.py", "--token", "***", "a"),
    ("x.py", "--eos-token", "2", "--pad-token=<pad>"): None,
    **{
        ("x.py", option, S, "--fast"): ("x.py", option, "***", "--fast")
        for option in ("--db-pass", "--pass", "--pw", "--secret-id", "--auth", "--WANDB_KEY")
    },
    ("x.py", f"--pass={S}"): ("x.py", "--pass=***"),
    ("x.py", "--passwords", "a", S, "--n", "1"): ("x.py", "--passwords", "***", "***", "--n", "1"),
    ("x.py", "--password", f"--{S}", "a"): ("x.py", "--password", "***", "a"),
    ("x.py", "--password", "--api-key", S): ("x.py", "--password", "***", "***"),
    ("x.py", "--user", f"me:{S} x", "a"): ("x.py", "--user", "me:***", "a"),
    ("x.py", f"--user=me:{S} x"): ("x.py", "--user=me:***"),
    ("x.py", "-u", f"me:{S}"): ("x.py", "-u", "me:***"),
    ("x.py", "-u", "me", "--user", "1000:1000"): None,
    ("bash", "-c", f"x --password {S} y"): ("bash", "-c", "x --password *** y"),
    ("x.py", "--token", "--fast"): None,
    ("x.py", "password", "reset"): None,
    ("x.py", "--credentials", "/etc/key.json"): None,
    ("x.py", f"postgresql://u:{S}@db/x"): ("x.py", "postgresql://db/x"),
    ("dagster", "api", "grpc", "--instance-ref", json.dumps({"config_yaml": CONFIG}), "-p"): (
        ("dagster", "api", "grpc", "--instance-ref", "***", "-p")
    ),
    ("dagster", "api", "execute_run", json.dumps({"instance_ref": {"config_yaml": CONFIG}})): (
        "dagster",
        "api",
        "execute_run",
        '{"instance_ref": {"config_yaml": "event_log_storage:\\n  password: ***\\n"}}',
    ),
}


@pytest.mark.parametrize(("command", "clean"), COMMANDS.items(), ids=range(len(COMMANDS)))
def test_a_credential_in_a_command_line_is_hidden(
    command: tuple[str, ...], clean: tuple[str, ...] | None
) -> None:
    assert tuple(scrub_arguments(command)) == (clean or command)


@pytest.mark.timeout(120)  # a guard: quadratic time takes longer, linear time seconds
@pytest.mark.parametrize(
    "piece", ["\"'[({", "\\", '\\"', "a-", "password=[", "'\"'\"'", "auth:\n  - ", "://:", "-eyJ"]
)
def test_a_long_text_is_searched_without_backtracking(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert scrub(f"{text} passwords=['{S}{text}").find(S) == -1
    assert tuple(scrub_arguments([f"--password={text}"])) == ("--password=***",)
