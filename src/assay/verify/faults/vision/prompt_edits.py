PROMPT_PLANTS = {}
class PromptParts: pass
