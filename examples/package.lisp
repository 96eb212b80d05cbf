;;;; Three services and a client, written as a user of clgrpc would write them.

(defpackage #:clgrpc.examples
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc))
  (:import-from #:clgrpc.base #:parse-json)
  (:export
   ;; greeter.lisp
   #:greeter
   ;; chat.lisp
   #:chat #:chat-page
   ;; geometry.lisp
   #:point= #:inside-p #:distance-metres
   ;; route-guide.lisp
   #:*known-features* #:read-features #:find-feature #:feature-at #:route-guide
   #:route-guide-features #:make-trip #:add-point #:trip-summary
   ;; route-guide-client.lisp
   #:run-route-guide-client))
