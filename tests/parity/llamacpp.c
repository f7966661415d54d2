// llamacpp LIBRARIES FILE.gguf logits|states OUT ID ...: a row of float32 numbers for each token, on the CPU.
// A model of two stacks reads the ids as its source and again as its target. Errors go to stderr, with status 1.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"

static void only_errors(enum ggml_log_level level, const char * text, void * unused) {
    (void) unused;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int count, char ** given) {
    const int tokens = count - 5;
    if (tokens < 1) return 2;
    const bool states = !strcmp(given[3], "states");
    llama_log_set(only_errors, NULL);
    ggml_backend_load_all_from_path(given[1]);

    struct llama_model_params loading = llama_model_default_params();
    loading.n_gpu_layers = 0;
    loading.use_extra_bufts = false;  // matrices packed anew have kernels of their own
    struct llama_model * model = llama_model_load_from_file(given[2], loading);
    if (!model) return 1;

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 256;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    params.embeddings = states;
    struct llama_context * context = llama_init_from_model(model, params);
    if (!context) return 1;

    struct llama_batch batch = llama_batch_init(tokens, 0, 1);
    batch.n_tokens = tokens;
    for (int n = 0; n < tokens; n++) {
        batch.token[n] = atoi(given[5 + n]);
        batch.pos[n] = n;
        batch.n_seq_id[n] = 1;
        batch.seq_id[n][0] = 0;
        batch.logits[n] = true;
    }
    if (llama_model_has_encoder(model) && llama_encode(context, batch)) return 1;
    if (llama_model_has_decoder(model) && llama_decode(context, batch)) return 1;

    const float * rows = states ? llama_get_embeddings(context) : llama_get_logits(context);
    const int width = states ? llama_model_n_embd(model) : llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE * out = fopen(given[4], "wb");
    return !rows || !out || fwrite(rows, sizeof(float) * width, tokens, out) != (size_t) tokens || fclose(out);
}
