;;;; Tests of clgrpc.hpack; each file mirrors one of src/http/hpack/. Random tests print their seed;
;;;; setting CLGRPC_SEED to it repeats them.

(defpackage #:clgrpc.tests.hpack
  (:use #:cl #:clgrpc.base #:clgrpc.hpack #:clgrpc.tests.form)
  (:local-nicknames (#:hpack #:clgrpc.hpack)))
