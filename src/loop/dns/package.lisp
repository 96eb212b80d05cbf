;;;; DNS: messages as octets, without I/O (RFC 1035, 3596, 6891), and a small client on the event
;;;; loop that asks given servers over UDP, and over TCP if an answer is too long.

(defpackage #:clgrpc.dns
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os))
  (:export
   ;; name.lisp
   #:malformed-message #:malformed-message-text #:malformed-message-position
   #:name-octets #:name-text
   ;; dns-message.lisp
   #:+a+ #:+cname+ #:+txt+ #:+aaaa+
   #:message #:message-id #:message-response-p #:message-truncated-p #:message-code
   #:message-question #:message-records
   #:record #:record-name #:record-type #:record-seconds #:record-data
   #:encode-query #:parse-message
   ;; dns-answer.lisp
   #:outcome #:message-outcome
   ;; dns-query.lisp
   #:query #:ask #:give-up
   ;; host.lisp
   #:lookup-host
   ;; system.lisp
   #:parse-servers #:system-servers))
