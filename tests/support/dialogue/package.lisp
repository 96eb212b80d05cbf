;;;; Dialogues: scripts of what a peer sends, frame by frame, and what we must answer and tell our
;;;; owner. script.lisp has the notation; the other files are about one subject each.

(defpackage #:clgrpc.tests.dialogue
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:h2 #:clgrpc.http2) (#:hpack #:clgrpc.hpack))
  (:export
   ;; frame.lisp
   #:frame-octets #:frames-octets #:raw-frame #:read-frame-forms #:frame-form #:canonical
   #:peer #:make-peer #:*most-shown*
   ;; script.lisp
   #:*preface* #:*dialogue* #:dialogue #:dialogue-connection #:dialogue-events #:dialogue-buffer
   #:make-dialogue #:begin-dialogue #:define-dialogue
   #:hears #:says #:sees #:silent #:tells #:flush #:find-stream #:connection #:respond #:request
   #:encode-fields #:+get+ #:event)
  ;; for other tests
  (:export #:big-endian #:split-frame))
