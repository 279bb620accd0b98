//! Small programs that teach one thing each; every one stands alone, beside this file's directory. `first_prompt` is the one to begin with.
