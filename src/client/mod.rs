mod sse;
