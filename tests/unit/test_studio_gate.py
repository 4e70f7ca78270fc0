"""Who may ask the studio: this machine, with the token, from its own pages; everybody else gets one sentence."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from fedveil.studio.app import application
from fedveil.studio.gate import POLICY
from fedveil.studio.places import Folder
from fedveil.studio.state import Studio
from studio_client import HERE, PORT, SAME, Client

CHANGING = ["/example", "/table", "/upload?name=a.csv", "/start", "/stop", "/resume", "/approve", "/sign", "/key"]
CHANGING += ["/card", "/audit", "/predict?name=a.csv&out=x", "/api/choose", "/api/save", "/api/plan", "/api/game"]


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(folder=Folder(tmp_path), upload_limit=1000)
    yield made
    made.close()


@pytest.fixture
def stranger(studio: Studio) -> Client:
    return Client(application(studio, PORT))


@pytest.fixture
def owner(stranger: Client, studio: Studio) -> Client:
    assert stranger.get(f"/open?token={studio.known.token}").status_code == 303
    return stranger


def test_the_address_with_the_token_sets_a_cookie_that_no_script_and_no_other_site_gets(
    stranger: Client, studio: Studio
) -> None:
    answer = stranger.get(f"/open?token={studio.known.token}")
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert studio.known.token not in cookie
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "A" * 43])
def test_a_wrong_token_opens_nothing(stranger: Client, token: str) -> None:
    answer = stranger.get("/open", params={"token": token})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize("path", ["/", "/static/studio.js", "/design?study=a.toml", "/runs", "/file?name=report.html"])
def test_without_the_cookie_nothing_is_shown(stranger: Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert answer.text == "This studio opens only at the address that it printed when it was started.\n"


def test_a_wrong_cookie_is_no_cookie(stranger: Client) -> None:
    for value in ("x", "", 'a"b', "é"):
        header = f"fedveil-studio-{PORT}={value}".encode()
        assert stranger.get("/", headers={"cookie": header}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:8123", ""]
)
def test_a_foreign_name_that_points_at_this_machine_gets_nothing(owner: Client, studio: Studio, host: str) -> None:
    answer = owner.get("/", headers={"host": host})
    assert answer.status_code == 421
    token = owner.get(f"/open?token={studio.known.token}", headers={"host": host})
    assert token.status_code == 421
    assert "set-cookie" not in token.headers


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": HERE},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "https://127.0.0.1:8123"},
    ],
    ids=str,
)
def test_a_forged_request_changes_nothing(owner: Client, studio: Studio, path: str, headers: dict[str, str]) -> None:
    answer = owner.post(path, headers={**headers, "x-fedveil-word": studio.known.form}, content=b"{}")
    assert answer.status_code == 403
    assert answer.text == "This request came from another site, so nothing was done.\n"
    assert list(studio.folder.root.iterdir()) == []


@pytest.mark.parametrize("path", CHANGING)
def test_a_form_without_its_word_changes_nothing(owner: Client, studio: Studio, path: str) -> None:
    content = b'{"name": "hospitals"}' if path.startswith("/api") else b"name=hospitals&word=wrong"
    answer = owner.post(path, headers={**SAME, "x-fedveil-word": "wrong"}, content=content)
    assert answer.status_code in (400, 403)
    assert not [path for path in studio.folder.root.rglob("*") if path.is_file()]
    assert "load the page again" in answer.text or "must" in answer.text


def test_other_sites_cannot_even_read(owner: Client) -> None:
    assert owner.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert owner.get("/", headers={"sec-fetch-site": "same-site"}).status_code == 403
    assert owner.get("/", headers={"sec-fetch-site": "none"}).status_code == 200


def test_every_answer_keeps_the_page_to_itself(owner: Client) -> None:
    for path in ("/", "/no-such-page", "/static/studio.css", "/open?token=x"):
        headers = owner.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY
    page = owner.get("/").text
    assert " style=" not in page
    assert "<script>" not in page
    assert "http://" not in page


def test_only_the_package_s_own_files_are_static(owner: Client) -> None:
    assert owner.get("/static/page.css").headers["content-type"].startswith("text/css")
    for name in ("../app.py", "..%2fapp.py", "app.py", "%2e%2e/gate.py", "", "examples"):
        assert owner.get(f"/static/{name}").status_code == 404


def test_an_upload_is_bounded_whether_it_says_its_size_or_not(owner: Client, studio: Studio) -> None:
    headers = {**SAME, "x-fedveil-word": studio.known.form}
    stated = owner.post("/upload?name=a.csv", headers=headers, content=b"x" * 1001)

    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            yield b"y" * 100

    streamed = owner.post("/upload?name=b.csv", headers=headers, content=pieces())
    for answer in (stated, streamed):
        assert answer.status_code == 413
        assert "at most 1,000 bytes" in answer.json()["error"]
    form = owner.post("/api/choose", headers=headers, content=b'{"text": "' + b"z" * 1_000_001 + b'"}')
    assert form.status_code == 413
    assert list(studio.folder.root.iterdir()) == []
    assert owner.post("/upload?name=a.csv", headers=headers, content=b"x" * 1000).json()["open"] == "/table?data=a.csv"
    again = owner.post("/upload?name=a.csv", headers=headers, content=b"other")
    assert "Nothing is overwritten" in again.json()["error"]
    assert (studio.folder.root / "a.csv").read_bytes() == b"x" * 1000


@pytest.mark.parametrize(
    "name", ["../a.csv", "a/b.csv", "/etc/a.csv", ".a.csv", "a.py", "a.toml", "private/a.csv", "", "\x00.csv"]
)
def test_an_upload_has_a_plain_name_of_a_table(owner: Client, studio: Studio, name: str) -> None:
    headers = {**SAME, "x-fedveil-word": studio.known.form}
    answer = owner.post("/upload", params={"name": name}, headers=headers, content=b"x")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("The file must")
    assert list(studio.folder.root.iterdir()) == []


def test_bad_bodies_are_one_sentence(owner: Client, studio: Studio) -> None:
    headers = {**SAME, "x-fedveil-word": studio.known.form}
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"1"):
        answer = owner.post("/api/choose", headers=headers, content=body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(("The request must be JSON", "The request must hold a JSON object"))
    assert owner.post("/example", headers=SAME, content=b"\xff=\xfe").status_code in (400, 403)
