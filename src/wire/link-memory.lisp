;;;; The memory of links. The octets that a link holds are charged to its account
;;;; (base/memory/account.lisp), which is part of its peer's, its server's and the process's; or, at
;;;; a client, of its channel's.
;;;;
;;;; - Charged when the memory is taken and released when it is given up: header lists of calls,
;;;;   incomplete messages, requests that wait for a handler (HOLD); messages that no thread has
;;;;   taken, answers on their way to the loop (CHARGE-LINK).
;;;; - Measured when the link is read or flushed, and when more DATA is queued: tables and caches,
;;;;   open streams, queued DATA, incomplete header blocks, the data of another protocol
;;;;   (MEASURE-LINK); leftovers of input, output, TLS (loop/io/connection-buffer.lisp).
;;;;
;;;; An incomplete message counts with the memory that is allocated for it.
;;;;
;;;; Refusals: let TOTAL be the limit of all links together, and F its unused part.
;;;; - A link that holds up to a sixteenth of TOTAL, or 64 KB if that is less, may always hold more.
;;;; - Otherwise a call ends if its link would hold more than max-held-octets, or, while half of
;;;;   TOTAL is held, more than two of the largest messages; or if its peer would hold more than 3
;;;;   F. These limits follow the rule of loop/threads/thread-quota.lisp: one peer alone may have
;;;;   three quarters of TOTAL, two peers 3/7 each. A peer may always have a 64th of TOTAL: measured
;;;;   octets are never refused, so F may be 0 for long.
;;;; - Above 9/8 of TOTAL the peer that holds most loses the link that holds most
;;;;   (server/limits/memory-pressure.lisp).
;;;;
;;;; A call whose messages are not read should delay only itself. So the connection's window grows
;;;; also for octets that no thread has read yet, until the link holds half of max-held-octets. From
;;;; then on the connection's window is withheld, until the link holds less than a quarter.

(in-package #:clgrpc.wire)

(defconstant +little-held-octets+ 65536
  "The number of octets that a link may always hold, however many octets its peer's other links
hold.")
(defconstant +least-unsent-octets+ 65536
  "The number of octets of unsent output that a link may always have.")

(define-hot (all-account :inline t) ((account account)) account
  "The account of all links of the server or channel to which the link with ACCOUNT belongs."
  (let* ((whole (the account (account-whole account)))
         (above (account-whole whole)))
    (if (and above (account-whole above)) above whole)))

(define-hot (link-held :inline t) ((link link)) index
  "The number of octets that the calls of LINK hold."
  (max 0 (- (account-sum (link-account link)) (link-measured link)
            (loop:connection-kept (the loop:connection (link-socket link))))))

(define-hot pressed-p ((link link)) boolean
  "True if all links together hold more than half of their limit."
  (< (ash (total-held-limit (link-options link)) -1)
     (account-sum (all-account (link-account link)))))

(define-hot link-held-limit ((link link)) index
  "Return the maximum number of octets that LINK may hold. It is lower while all links together hold
many octets."
  (let* ((options (link-options link))
         (least (* 2 (options-max-receive-octets options))))
    (if (pressed-p link)
        least
        (max (options-max-held-octets options) least))))

(define-hot all-hold-too-much-p ((account account) (total index)) boolean
  "True if the peer of ACCOUNT, a link's account, holds too much; TOTAL is the limit of all links."
  (let* ((peer (the account (account-whole account)))
         (all (all-account account))
         (left (- total (account-sum all))))
    (if (eq peer all)                   ; a channel's
        (minusp left)
        (< (max (* 3 left) (ash total -6)) (account-sum peer)))))

(define-hot excess ((link link)) (member nil :connection-holds-too-much :all-hold-too-much)
  "Return the verdict on a call that has added to the octets that LINK holds, or nil if the link is
within its limits."
  (let* ((total (total-held-limit (link-options link)))
         (account (link-account link))
         (sum (account-sum account)))
    (cond ((<= sum (min +little-held-octets+ (ash total -4))) nil)
          ((< (link-held-limit link) (link-held link)) :connection-holds-too-much)
          ((all-hold-too-much-p account total) :all-hold-too-much)
          (t nil))))

(define-hot permit ((call wire-call)) boolean
  "If the octets that CALL has added to its link exceed a limit, end CALL and return false;
otherwise return true."
  (let ((verdict (excess (the link (wire-call-link call)))))
    (cond (verdict (abort-as call verdict) nil)
          (t t))))

(define-hot hold ((call wire-call) (count index) &optional (until-closed boolean nil)) boolean
  "Charge CALL's link with COUNT octets that CALL keeps until they are delivered or, if UNTIL-CLOSED
is true, until CALL's stream, which must be open, is closed. If the sum exceeds a limit, end CALL
and return false. On the loop."
  (if until-closed
      (incf (http2:stream-charge (the http2:stream (wire-call-stream call))) count)
      (incf (wire-inbound-held (ensure-wire-inbound call)) count))
  (charge-own (link-account (the link (wire-call-link call))) count)
  (permit call))

(define-hot charge-link ((link link) (count index)) null
  "Charge LINK with COUNT octets of messages that wait."
  (charge-account (link-account link) count))

(define-hot discharge ((call wire-call) (count index)) null
  "Subtract COUNT octets of CALL's messages from the charge of its link. If the link's window is
withheld and the link no longer holds too much, return the window. From any thread."
  (let ((link (the link (wire-call-link call))))
    (discharge-account (link-account link) count)
    (when (and (link-window-withheld link) (drained-p link))
      (wire-post call (lambda () (return-window link))))
    nil))

(define-hot drained-p ((link link)) boolean
  (< (link-held link) (ash (link-held-limit link) -2)))

(defun trace-window (link event)
  (trace-event :flowctl event :peer (link-peer link) :held-octets (link-held link)))

(defun return-window (link)
  "If LINK's window is withheld and LINK no longer holds too much, let the connection's window grow
by all octets received. On the loop."
  (when (and (link-window-withheld link) (drained-p link))
    (setf (link-window-withheld link) nil)
    (when (tracing-p :flowctl) (trace-window link :connection-window-given-back))
    (when (link-http2 link)
      (http2:map-streams #'http2:credit-connection (link-http2 link)))))

(define-hot credit-link ((call wire-call) (stream http2:stream)) null
  "Let the connection's window, but not STREAM's, grow by the octets that CALL holds, unless CALL's
link holds too much."
  (let ((link (the link (wire-call-link call))))
    (cond ((< (link-held link) (ash (link-held-limit link) -1))
           (http2:credit-connection stream))
          (t (setf (link-window-withheld link) t)
             (when (tracing-p :flowctl) (trace-window link :connection-window-withheld))
             (sb-thread:barrier (:memory))
             ;; readers may have taken enough just before they could see that the window is withheld
             (return-window link)))
    nil))

(define-hot release-held ((call wire-call)) null
  "Discharge the octets that CALL holds from its link. On the loop."
  (let* ((inbound (call-wire-inbound call))
         (link (the link (wire-call-link call)))
         (held (if inbound (shiftf (wire-inbound-held inbound) 0) 0)))
    (when (plusp held)
      (charge-own (link-account link) (- held))
      (when (link-window-withheld link) (return-window link))))
  nil)

(define-hot release-inbound ((call wire-call) (inbound wire-inbound)) null
  "Do what RELEASE-CALL does; INBOUND is CALL's part."
  (release-held call)
  (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; atomic, hence a raw word
    (discharge call (uncharge inbound (wire-inbound-queued-octets inbound))))
  nil)

(define-hot (release-call :inline t) ((call wire-call)) null
  "Release all charges of CALL, whose stream is closed, from its link, except those of the stream."
  (let ((inbound (call-wire-inbound call)))
    (when inbound (release-inbound call inbound)))
  nil)

;;; The metadata of the last call

(defconstant +shared-octets+ 4096
  "The maximum number of octets of metadata that are kept for the next call.")

(define-hot (list-fields :inline t) ((list hpack:field-list) (link (or null link)))
    (values simple-vector index)
  "Return two values: the metadata in LIST, and the number of octets of memory that the metadata
occupy. If LIST is the headers of a call received on LINK, and the metadata is short, LINK keeps the
metadata, because the next call may have the same metadata. LINK is nil for trailers, whose octets
are not counted."
  (let* ((last (if link (link-last-fields link) #()))
         (fields (list-custom-fields list last)))
    (if (and link (eq fields last))
        (values fields (link-last-octets link))
        (let* ((octets (if link (hpack:fields-octets fields) 0))
               (short (<= octets +shared-octets+)))
          (when link
            (setf (link-last-fields link) (if short fields #())
                  (link-last-octets link) (if short octets 0)))
          (values fields octets)))))

;;; Measurement

(define-hot measured-octets ((link link)) index
  "The number of octets that LINK keeps in addition to its messages and its loop's buffers."
  (let ((http2 (link-http2 link)))
    (if http2
        (+ (http2:kept-octets http2) (link-last-octets link))
        (let ((protocol (link-protocol link)))
          (declare (type connection-protocol protocol))
          (values (the index (funcall (connection-protocol-octets protocol) link)))))))

(define-hot measure-link ((link link)) null
  "Change the charge of LINK to the octets that it keeps now. On its loop."
  (let ((measured (measured-octets link))
        (socket (the loop:connection (link-socket link))))
    (charge-own (link-account link) (- measured (shiftf (link-measured link) measured)))
    ;; while all links together hold much, each may have less unsent output
    (setf (loop:connection-max-unsent socket)
          (if (pressed-p link)
              (min +least-unsent-octets+ (options-max-unsent-octets (link-options link)))
              (options-max-unsent-octets (link-options link)))))
  nil)
