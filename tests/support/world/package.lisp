;;;; Connections within memory, for tests of what is above HTTP/2 without a socket: a loop that the
;;;; thread of the test runs turn by turn, on a clock that stands until the test says otherwise, and
;;;; peers that speak in the words of tests/support/dialogue.

(defpackage #:clgrpc.tests.world
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:dialogue #:clgrpc.tests.dialogue))
  (:export
   ;; world.lisp
   #:world #:make-world #:world-loop #:world-now #:world-errors #:start-world #:run-turns
   #:call-in-world #:end #:end-shut #:end-closed #:end-ended #:new-end #:say #:stop-talking
   #:take-said #:end-byte-channel #:end-full #:end-portion #:end-news
   ;; script.lisp
   #:*world* #:*end* #:passes #:hears #:says #:said #:silent #:answers-to #:connects #:hangs-up)
  ;; for other tests
  (:export #:peer-of))
