"""Templates with the structure of published ones where they treat thoughts and history."""

QWEN3 = """
{%- set ns = namespace(query=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set ns.query = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
  {%- set thought = '' -%}{%- set answer = m.content -%}
  {%- if m.role == 'assistant' and m.reasoning_content is string -%}{%- set thought = m.reasoning_content -%}
  {%- elif m.role == 'assistant' and '</think>' in answer -%}
    {%- set thought = answer.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
    {%- set answer = answer.split('</think>')[-1].lstrip('\\n') -%}
  {%- endif -%}
  {{- '<|im_start|>' + m.role + '\\n' -}}
  {%- if m.role == 'assistant' and loop.index0 > ns.query and (loop.last or thought) -%}
    {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + answer.lstrip('\\n') -}}
  {%- else -%}{{- answer -}}{%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}"""
"""The thought of the last turn is kept, those of earlier turns are dropped, and an empty one is added."""

R1 = """
{{- bos_token -}}
{%- for m in messages -%}
  {%- if m.role == 'system' -%}{{- m.content -}}
  {%- elif m.role == 'user' -%}{{- '<|User|>' + m.content -}}
  {%- else -%}{{- '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\\n' -}}{%- endif -%}"""
"""All thoughts are dropped, and the prompt opens one."""

GEMMA3 = """
{{- bos_token -}}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for m in messages if m.role != 'system' -%}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}
  {{- (system if loop.first else '') + m.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""
"""The system prompt goes into the first turn, and all text is trimmed."""

SMOLLM3 = """
{%- set mode = 'no_think' if enable_thinking is defined and enable_thinking is false else 'think' -%}
{{- '<|im_start|>system\\nReasoning mode: /' + mode + '<|im_end|>\\n' -}}
{%- for m in messages if m.role != 'system' -%}
  {%- if m.role == 'assistant' and mode == 'no_think' -%}
    {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' + m.content.lstrip('\\n') + '<|im_end|>\\n' -}}
  {%- elif m.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' + m.content.lstrip('\\n') + '<|im_end|>\\n' -}}
  {%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' + ('<think>\\n\\n</think>\\n' if mode == 'no_think' else '') -}}
{%- endif -%}"""
"""Every turn has an empty thought without thinking, and its own with it."""

LLAMA3 = """
{%- set turns = messages[1:] if messages[0].role == 'system' else messages -%}
{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\nToday Date: 26 Jul 2024\\n\\n' -}}
{{- system + '<|eot_id|>' -}}
{%- for m in turns -%}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""
"""A system turn is always written, and all text is trimmed."""
