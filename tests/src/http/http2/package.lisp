;;;; Tests of clgrpc.http2; each file mirrors one of src/http/http2/. Conversations are in
;;;; tests/support/dialogue/; here are tests of single parts, random sessions and allocation.

(defpackage #:clgrpc.tests.http2
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:h2 #:clgrpc.http2) (#:hpack #:clgrpc.hpack))
  (:import-from #:clgrpc.tests.hpack #:with-random #:octets-per-run #:random-octets)
  (:import-from #:clgrpc.tests.dialogue
                #:*dialogue* #:begin-dialogue #:shake-hands #:connection #:find-stream #:hears
                #:says #:sees #:tells #:flush #:respond #:request #:make-peer #:frames-octets
                #:frame-octets #:read-frame-forms #:field-set #:*preface*))
