"""Random tokenizers, trained by the package `tokenizers`, and what they make of random texts.

A request has the text of a tokenizer.json, texts to encode, and ids to decode. Texts for NFC have no combining marks that Unicode
added after version 9, which `tokenizers` does not reorder (`TokenizerTest.NfcOrdersMarksByCurrentUnicode`). Added tokens have no
characters of the byte map, which `tokenizers` does not decode to their text (`TokenizerTest.AddedTokensDecodeToTheirText`).
"""
import json
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = (LLAMA3, QWEN2, GPT4O, DEEPSEEK, r"\s+", r"\d|\S+?(?=\s)", r"(?<=a)b|\P{L}++", "[一-龥぀-ゟ゠-ヿ]+")
BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
SAMPLES = (
    "The quick brown fox jumps over the lazy dog; it'll DON'T they'VE I'm we're she'd, 12345 67.89 €100.",
    "Größe, Übermut und naïve Cafés: Ça va? Ærø, ſtraße, Kelvin K, ﬁn.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку. Ёж.",
    "敏捷的棕色狐狸跳过了懒狗。素早い茶色の狐がのろまな犬を飛び越える。カタカナ、ひらがな。빠른 갈색 여우가 게으른 개를",
    "सरल हिन्दी वाक्य क्षत्रिय। ภาษาไทยไม่มีช่องว่าง العَرَبِيَّة ٣٤٥ עִבְרִית",
    "👩‍👩‍👧‍👦 🇩🇪🏳️‍🌈 😀😃 👍🏽 ½ ² Ⅷ ① 𝒳 𝟘 𐍈",
    "e\u0301 a\u0308\u0323 o\u0302\u0301 \u1100\u1161\u11a8 \u212b \u2126 \u0344 \u0958 \ufb1d",
    "def f(x):\n    return x**2  # Kommentar\n\n\tif a!=b && c<=d: {'k': [1,2,3]}\r\n",
    " \u00a0\u2003\u3000\u1680\u180e\u200b\u2028\u2029\u0085\u202f\u205f\ufeff \t\t  \n\n\n   \r\n \x0b\x0c\x1c \x00\x01",
    "Ġ Ċ ĉ Ń ¡ ÿ <|endoftext|> <s></s> [MASK] <|im_start|> ��\ufffd \ufffe\uffff",
)
TOKENS = ("<|endoftext|>", "<s>", "</s>", "[MASK]", "<|im_start|>", "<|im", "lazy", "er", "  ", "\n", "が", "か\u3099x", "素早", " a", "<mask>")
MARKS = [chr(code) for code in range(0x300, 0x370)]


def random_text(rng, longest=400):
    """Parts of samples, and characters from everywhere."""
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.randrange(8)
        sample = rng.choice(SAMPLES)
        start = rng.randrange(len(sample))
        if kind < 4:
            parts.append(sample[start : start + rng.randrange(1, 40)])
        elif kind == 4:
            parts.append(rng.choice(TOKENS))
        elif kind == 5:
            parts.append(rng.choice(" \n\t\u3000a1") * rng.randrange(1, 9))
        elif kind == 6:
            parts.append(rng.choice("aeiou") + "".join(rng.choices(MARKS, k=rng.randrange(1, 4))))
        else:
            parts.append("".join(random_character(rng) for _ in range(rng.randrange(1, 6))))
    return "".join(parts)[:longest]


def random_character(rng):
    while True:
        code = rng.randrange(rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000]))
        # Python's Unicode 14 knows a mark, or the code point may be a newer one.
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code))[0] != "M" and unicodedata.category(chr(code)) != "Cn":
            return chr(code)


def random_stages(rng):
    stages = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        kind = rng.randrange(8)
        if kind == 0:
            stages.append(pre_tokenizers.Digits(individual_digits=rng.random() < 0.5))
        elif kind == 1:
            stages.append(pre_tokenizers.Split(rng.choice([" ", "e", ".", "素", "\n", "a+"]), rng.choice(BEHAVIORS), invert=rng.random() < 0.3))
        elif kind == 2:
            stages.append(pre_tokenizers.Split(Regex(rng.choice(PATTERNS)), rng.choice(BEHAVIORS), invert=rng.random() < 0.3))
        else:
            stages.append(pre_tokenizers.Split(Regex(rng.choice(PATTERNS[:4])), "isolated"))
    use_regex = rng.random() < 0.5 or not stages
    return [*stages, pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.3, use_regex=use_regex)]


def random_tokenizer(rng):
    unk_token = rng.choice([None, None, None, "<unk>"])
    tokenizer = Tokenizer(models.BPE(unk_token=unk_token, fuse_unk=rng.random() < 0.5, ignore_merges=rng.random() < 0.3))
    stages = random_stages(rng)
    tokenizer.pre_tokenizer = stages[0] if len(stages) == 1 else pre_tokenizers.Sequence(stages)
    if rng.random() < 0.4:
        tokenizer.normalizer = normalizers.NFC()
    if rng.random() < 0.9:
        tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", *(["<unk>"] if unk_token else []), *rng.choice([[], ["<s>", "</s>"]])]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if rng.random() < 0.7 else []
    trainer = trainers.BpeTrainer(vocab_size=rng.randrange(260, 1200), special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    corpus = [random_text(rng) for _ in range(60)] + list(SAMPLES)
    tokenizer.train_from_iterator(corpus, trainer)
    for content in rng.sample(TOKENS, rng.randrange(6)):
        flags = {name: rng.random() < chance for name, chance in (("single_word", 0.2), ("lstrip", 0.2), ("rstrip", 0.2), ("normalized", 0.5))}
        flags["lstrip"] = flags["lstrip"] and not content.isspace()  # `tokenizers` panics if an earlier token has all of the spaces
        added = AddedToken(content, **flags)
        tokenizer.add_special_tokens([added]) if rng.random() < 0.4 else tokenizer.add_tokens([added])
    byte_level = processors.ByteLevel(trim_offsets=rng.random() < 0.5)
    template = processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))])
    tokenizer.post_processor = rng.choice([byte_level, template, processors.Sequence([byte_level, template])])
    return tokenizer


def old_merges(text):
    """The file as versions before 0.20 wrote it."""
    file = json.loads(text)
    file["model"]["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in file["model"]["merges"])]
    return json.dumps(file)


def random_request(rng):
    tokenizer = random_tokenizer(rng)
    text = tokenizer.to_str()
    size = tokenizer.get_vocab_size()
    return {
        "file": old_merges(text) if rng.random() < 0.3 else text,
        "texts": ["", *(random_text(rng) for _ in range(20))],
        "ids": [[rng.randrange(size + 3) for _ in range(rng.randrange(20))] for _ in range(10)],
        "added": TOKENS,
    }


def answer(request):
    tokenizer = Tokenizer.from_str(request["file"])
    encoded = [tokenizer.encode(text).ids for text in request["texts"]]
    size = tokenizer.get_vocab_size()
    return {
        "encoded": encoded,
        "without_special_tokens": [tokenizer.encode(text, add_special_tokens=False).ids for text in request["texts"]],
        "decoded": [tokenizer.decode(ids) for ids in encoded + request["ids"]],
        "decoded_with_special_tokens": [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded + request["ids"]],
        "vocab_size": size,
        "tokens": [tokenizer.id_to_token(token) for token in range(size + 3)],
        "added": [tokenizer.token_to_id(token) for token in request["added"]],
    }


def request_of_all_characters():
    """Each code point in a word, so that every Unicode class of the patterns is compared."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4O), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(f"a{character} {character}1" for character in characters[start : start + 128]) for start in range(0, len(characters), 128)]
    return {"file": tokenizer.to_str(), "texts": texts, "ids": [], "added": []}


def difference(theirs, ours):
    """The part of an answer that differs; None if none does."""
    for key, their in theirs.items():
        if their != ours[key]:
            if not isinstance(their, list):
                return f"{key}: {their} and {ours[key]}"
            index = next(index for index, (one, other) in enumerate(zip(their, ours[key])) if one != other)
            return f"{key}[{index}]: {their[index]} and {ours[key][index]}"
    return None
