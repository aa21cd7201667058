"""Makes small documents of many kinds by hand, with only the parts that a reader needs."""

import json
import zipfile
import zlib

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def pdf(*pages, streams=None):
    """Makes a PDF with a page for each text, and a line for each line of the text."""
    streams = [page_stream(text) for text in pages] if streams is None else streams
    count = len(streams)
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(count))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {count}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, stream in enumerate(streams):
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 400 400]/Contents {5 + 2 * number} 0 R"
            "/Resources<</Font<</F1 3 0 R>>>>>>".encode()
        )
        head = f"<</Length {len(stream)}/Filter/FlateDecode>>stream\n".encode()
        objects.append(head + stream + b"\nendstream")
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    start = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    end = f"trailer\n<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF"
    return out + start + end.encode()


def page_stream(text):
    lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n"))
    return zlib.compress(f"BT /F1 12 Tf 20 380 Td {lines}ET".encode("cp1252"))


def encrypted_pdf(path, user, *pages):
    from io import BytesIO

    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf(*pages))))
    writer.encrypt(user, "owner", algorithm="AES-256")
    writer.write(path)
    return str(path)


def archive(path, members, packing=zipfile.ZIP_DEFLATED):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return str(path)


def docx(path, body, begin=""):
    return archive(path, docx_members(body, begin))


def docx_members(body, begin=""):
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
        'officedocument.wordprocessingml.document.main+xml"/></Types>'
    )
    relations = relationships(("rId1", f"{OFFICE}/officeDocument", "word/document.xml"))
    styles = (
        f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="berschrift1">'
        '<w:name w:val="heading 1"/></w:style></w:styles>'
    )
    return {
        "[Content_Types].xml": types,
        "_rels/.rels": relations,
        "word/_rels/document.xml.rels": relationships(("rId1", f"{OFFICE}/styles", "styles.xml")),
        "word/styles.xml": styles,
        "word/document.xml": f'{begin}<w:document xmlns:w="{WORD}"><w:body>{body}</w:body>'
        "</w:document>",
    }


def paragraph(text, style=""):
    kind = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{kind}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows):
    cells = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def relationships(*several):
    listed = "".join(
        f'<Relationship Id="{id}" Type="{kind}" Target="{target}"/>' for id, kind, target in several
    )
    return f'<Relationships xmlns="{PACKAGE}">{listed}</Relationships>'


def epub(path, *chapters, protection=None):
    items = "".join(f'<item id="c{n}" href="text/c%20{n}.xhtml"/>' for n in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    members = {
        "META-INF/container.xml": "<container "
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        "OPS/book.opf": '<package xmlns="http://www.idpf.org/2007/opf"><metadata>'
        '<title xmlns="http://purl.org/dc/elements/1.1/">The Keeper</title></metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    for number, chapter in enumerate(chapters):
        members[f"OPS/text/c {number}.xhtml"] = f"<html><body>{chapter}</body></html>"
    if protection is not None:
        members["META-INF/encryption.xml"] = (
            '<encryption><EncryptionMethod xmlns="http://www.w3.org/2001/04/xmlenc#" '
            f'Algorithm="{protection}"/></encryption>'
        )
    return archive(path, members)


def notebook(*cells):
    listed = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "outputs": [{"text": "x"}]}
        for kind, source in cells
    ]
    return json.dumps({"cells": listed, "nbformat": 4})


# Each entity expands to ten of the one before it.
ENTITIES = (
    '<!DOCTYPE x [<!ENTITY a0 "lol">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    + "]>"
)
