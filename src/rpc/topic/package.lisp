;;;; Topics, which send each message to many streams; and streams that resume after a break.

(defpackage #:clgrpc.topic
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status))
  (:export #:follow-stream
           #:topic #:make-topic #:subscribe #:unsubscribe #:broadcast #:close-topic
           #:topic-position #:topic-statistics))
