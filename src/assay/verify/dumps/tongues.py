"""Words of other languages for what logs speak of, as the English ones that the tables know."""

from __future__ import annotations

import re
import unicodedata

# Written without accents and in lower case.
TONGUES: dict[str, tuple[str, ...]] = {
    word: tuple(english.split())
    for english, words in {
        "layer": "schicht couche capa camada strato laag lager slaj слой слои слоя слое слою ebene schichten couches capas camadas strati lagen warstwa "
        "warstwy katman",
        "output": "ausgabe ausgang sortie salida saida uscita uitvoer utdata выход выхода вывод wyjscie cikti "
        "resultado risultato resultat ergebnis",
        "after": "nach apres despues tras depois apos dopo после etter efter sonra",
        "before": "vor avant antes prima voor innan перед до",
        "without": "ohne sans sin sem senza zonder без",
        "input": "eingabe eingang entree entrada ingresso invoer вход входа wejscie",
        "position": "posicion posicao posizione positie pozycja позиция позиции stelle",
        "final norm": "schlussnorm endnorm abschlussnorm",
        "layer output": "schichtausgabe schichtausgang",
        "last": "letzte letzter letztes letzten dernier derniere ultimo ultima последний последнего последняя",
        "first": "erste ersten erster premier premiers primero primeros primeiro primeiros primi первые первых",
        "token": "jeton токен токена токены zeichen",
        "values": "werte valeurs valores valori значения значений",
        "embedding": "einbettung plongement incrustacion эмбеддинг эмбеддинги эмбеддинга",
        "attention": "aufmerksamkeit atencion atencao attenzione внимание внимания",
        "residual": "residuum residuel residuale остаток residuo",
        "norm": "normierung normalisation normalisierung normalizacion normalizacao normalizzazione norma norme нормализация нормализации норма",
        "final": "finale endgultig конечный финальная финальный",
        "logits": "логиты логитов",
        "hidden": "versteckt verborgen cache oculto скрытое скрытый",
    }.items()
    for word in words.split()
    if word != "cache"
}
_SIGNS = {
    "レイヤー": "layer", "レイヤ": "layer", "ブロック": "block", "出力": "output", "最後": "last", "最終": "final",
    "トークン": "token", "埋め込み": "embedding", "アテンション": "attention", "残差": "residual", "正規化": "norm",
    "ロジット": "logits", "隠れ状態": "hidden", "先頭": "first", "平均": "mean", "標準偏差": "std", "位置": "position",
    "层": "layer", "層": "layer", "输出": "output", "輸出": "output", "最后": "last", "词元": "token",
    "嵌入": "embedding",
    "注意力": "attention", "归一化": "norm", "前馈": "ffn", "隐藏": "hidden", "状态": "state",
    "之后": "after", "后": "after", "之前": "vor", "以前": "vor", "の前": "vor", "前の": "vor",
    "前": "first", "均值": "mean", "标准差": "std", "最大": "max", "最小": "min", "フィードフォワード": "ffn", "残差流": "residual stream", "之和": "sum", "个": "", "值": "values", "的": "",
    "레이어": "layer", "블록": "block", "출력": "output", "마지막": "last", "토큰": "token", "임베딩": "embedding",
    "어텐션": "attention", "잔차": "residual", "정규화": "norm", "로짓": "logits", "후": "after",
}  # fmt: skip
_SIGN = re.compile("|".join(sorted(map(re.escape, _SIGNS), key=len, reverse=True)))
_NTH = re.compile(r"第?\s?(\d{1,4})\s?(?:번째\s?)?[层層]目?")
_BEFORE = re.compile(r"(\S+)\s+vor\b")  # said behind what it is before of
_LATIN = re.compile("[\u00c0-\u024f]")


def english(text: str) -> str:
    """Text with letters beyond ASCII: signs as English words, accents dropped."""
    if _LATIN.search(text):
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = _NTH.sub(r" layer \1 ", text)
    return _BEFORE.sub(r"before \1", _SIGN.sub(lambda m: f" {_SIGNS[m[0]]} ", text))
