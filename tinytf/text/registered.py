"""The class of tokenizers that transformers 5.23 registers for each kind of model, where tinytf has it."""

UNCHANGED = "TokenizersBackend"
"""The class that uses a tokenizer.json unchanged, whatever class the files declare."""
_FAMILIES = {
    UNCHANGED: """
        arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe
        EvollaModel flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2
        gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat
        hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava
        llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral
        ministral3 mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2
        nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl
        pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5
        vipllava voxtral voxtral_realtime xlm-roberta-xl
    """,
    "AlbertTokenizer": "albert yoso",
    "BartTokenizer": "florence2",
    "BertTokenizer": """
        align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino
        layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp vilt
        visual_bert
    """,
    "BigBirdTokenizer": "big_bird",
    "CamembertTokenizer": "camembert",
    "DebertaV2Tokenizer": "deberta-v2",
    "EsmTokenizer": "esm",
    "GPT2Tokenizer": """
        blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2
        opt phi starcoder2
    """,
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "GemmaTokenizer": """
        diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2
        t5gemma zaya
    """,
    "LlamaTokenizer": "idefics idefics2",
    "M2M100Tokenizer": "m2m_100",
    "MBart50Tokenizer": "mbart50",
    "MBartTokenizer": "mbart",
    "MarianTokenizer": "marian",
    "MobileBertTokenizer": "mobilebert",
    "NllbTokenizer": "nllb nllb-moe",
    "PegasusTokenizer": "pegasus",
    "Qwen2Tokenizer": """
        audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr
        moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl
        qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice
    """,
    "RemBertTokenizer": "rembert",
    "RobertaTokenizer": """
        bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta roberta-prelayernorm
    """,
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
    "XGLMTokenizer": "xglm",
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod",
    "XLNetTokenizer": "xlnet",
}
REGISTERED = {family: name for name, families in _FAMILIES.items() for family in families.split()}
