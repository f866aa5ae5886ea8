"""Words of other languages for what logs speak of, as the English ones that the tables know."""

from __future__ import annotations

import re
import unicodedata

# Written without accents and in lower case.
TONGUES: dict[str, tuple[str, ...]] = {
    word: tuple(english.split())
    for english, words in {
        "layer": "schicht couche capa camada strato laag lager slaj слой слои слоя слое слою слоев ebene warstwa"
        " katman vrstva",
        "block": "bloc bloque bloco blocco blok блок блока блоке",
        "output": "ausgabe ausgang ausgaben sortie sorties salida salidas saida uscita uitvoer utdata выход вывод",
        "input": "eingabe eingang entree entrada ingresso invoer вход входа входной",
        "after": "nach apres despues tras depois apos dopo после etter efter sonra",
        "before": "vor avant antes prima voor innan перед до",
        "without": "ohne sans sin sem senza zonder без",
        "final norm": "schlussnorm endnorm abschlussnorm",
        "layer output": "schichtausgabe schichtausgang",
        "last": "letzte letzter letztes letzten dernier derniere ultimo ultima последний последнего последняя laatste",
        "first": "erste ersten erster premier premiers primero primeros primeiro primeiros primi первые первых eerste",
        "token": "jeton токен токена токену токены zeichen",
        "position": "posicion posicao posizione positie позиция позиции pozycja konum",
        "row": "zeile ligne fila linha riga строка строки rij",
        "values": "werte valeurs valores valori значения значений waarden",
        "embedding": "einbettung einbettungen plongement plongements incrustacion эмбеддинг эмбеддинги эмбеддинга",
        "attention": "aufmerksamkeit atencion atencao attenzione внимание внимания aandacht",
        "residual": "residuum residuel residuelle residuale остаток residuo residuos остаточный остаточная",
        "norm": "normierung normalisierung normalisation normalizacion normalizacao normalizzazione normalisatie"
        " norma norme"
        " нормализация нормализации нормировка норма",
        "final": "finale endgultig конечный финальная финальный",
        "logits": "логиты логитов",
        "hidden": "versteckt verborgen verborgener oculto oculta скрытое скрытый скрытого",
        "state": "zustand etat estado stato состояние состояния",
        "mean": "mittelwert mittel moyenne media promedio среднее medelvarde gemiddelde ortalama",
        "std": "standardabweichung standardabw desviacion ско",
        "sum": "summe somme suma soma somma сумма",
        "min": "минимум мин",
        "max": "максимум макс",
    }.items()
    for word in words.split()
}
_SIGNS = {
    "レイヤー": "layer", "レイヤ": "layer", "ブロック": "block", "出力": "output", "最後": "last", "最終": "final",
    "トークン": "token", "埋め込み": "embedding", "アテンション": "attention", "残差": "residual", "正規化": "norm",
    "ロジット": "logits", "隠れ状態": "hidden", "先頭": "first", "平均": "mean", "標準偏差": "std", "位置": "position",
    "层": "layer", "層": "layer", "输出": "output", "輸出": "output", "最后": "last", "词元": "token",
    "嵌入": "embedding",
    "最大値": "max", "最小値": "min", "最大值": "max", "最小值": "min", "平均值": "mean", "平均値": "mean",
    "合計": "sum", "总和": "sum", "求和": "sum", "入力": "input",
    "输入": "input", "行": "row", "块": "block",
    "隐状态": "hidden", "残差流": "residual", "残差连接": "residual add", "最终": "final", "后归一化": "post norm",
    "前归一化": "pre norm", "の後": "after", "の出力": "output",
    "注意力": "attention", "归一化": "norm", "前馈": "ffn", "隐藏": "hidden", "状态": "state",
    "之后": "after", "后": "after", "之前": "vor", "以前": "vor", "の前": "vor", "前の": "vor",
    "前": "first", "均值": "mean", "标准差": "std", "最大": "max", "最小": "min", "之和": "sum",
    "フィードフォワード": "ffn",    "个": "", "值": "values", "的": "",
    "레이어": "layer", "블록": "block", "출력": "output", "마지막": "last", "토큰": "token", "임베딩": "embedding",
    "어텐션": "attention", "잔차": "residual", "정규화": "norm", "로짓": "logits", "후": "after", "평균": "mean",
    "표준편차": "std", "합계": "sum", "최소": "min", "최대": "max", "입력": "input", "위치": "position",
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
