;;;; Octets that wait, for the rest of their message or for a reader, are charged to the link and to
;;;; the ledger of all links. Without that, many streams with a full window each, or with all but
;;;; the end of a message each, could hold any amount. A message that waits for its rest counts with
;;;; the memory that it has been given.
;;;;
;;;; A call whose messages are not read should hold up only itself. So the connection's window is
;;;; given back for octets that are not read yet, until the link holds half of max-held-octets. Then
;;;; the link is dammed: that window is withheld until the link holds less than a quarter.

(in-package #:clgrpc.wire)

(define-hot total-held-limit ((link link)) index
  "How much may be charged to all links of LINK's owner."
  (let ((limit (options-max-total-held-octets (link-options link))))
    (if (zerop limit) (ash (sb-ext:dynamic-space-size) -2) limit)))

(define-hot link-held-limit ((link link)) index
  "How much may be charged to LINK: less while all links together are charged with much."
  (let* ((options (link-options link))
         (least (* 2 (options-max-receive-octets options))))
    (if (< (ledger-held (link-ledger link)) (ash (total-held-limit link) -1))
        (max (options-max-held-octets options) least)
        least)))

(define-hot charge-link ((link link) (count index)) null
  "Charge LINK with COUNT octets."
  (sb-ext:atomic-incf (link-held link) count)
  (sb-ext:atomic-incf (ledger-held (link-ledger link)) count)
  nil)

(define-hot hold ((call wire-call) (count index)) boolean
  "Charge COUNT octets that CALL keeps to its link. False if that is too much: CALL has been ended."
  (let ((link (the link (wire-call-link call))))
    (incf (wire-inlet-held (ensure-wire-inlet call)) count)
    (charge-link link count)
    (cond ((> (link-held link) (link-held-limit link))
           (abort-as call :connection-holds-too-much)
           nil)
          ((> (ledger-held (link-ledger link)) (total-held-limit link))
           (abort-as call :all-hold-too-much)
           nil)
          (t t))))

(define-hot discharge ((call wire-call) (count index)) null
  "Take COUNT octets of CALL off its link. If the link is dammed and holds little enough now, open
its dam. From any thread."
  (let ((link (the link (wire-call-link call))))
    (sb-ext:atomic-decf (link-held link) count)
    (sb-ext:atomic-decf (ledger-held (link-ledger link)) count)
    (when (and (link-dammed link) (drained-p link))
      (wire-post call (lambda () (open-dam link))))
    nil))

(define-hot drained-p ((link link)) boolean
  (< (link-held link) (ash (link-held-limit link) -2)))

(defun tell-dam (link event)
  (trace-event :flowctl event :peer (link-peer link) :held-octets (link-held link)))

(defun open-dam (link)
  "If LINK is dammed and still holds little enough, give back the connection's window for all that
has come. On the loop."
  (when (and (link-dammed link) (drained-p link))
    (setf (link-dammed link) nil)
    (when (tracing-p :flowctl) (tell-dam link :connection-window-given-back))
    (http2:map-streams #'http2:credit-connection (link-http2 link))))

(define-hot credit-link ((call wire-call) (stream http2:stream)) null
  "Give back the connection's window, but not STREAM's, for the octets that CALL holds; or dam its
link if that holds too much."
  (let ((link (the link (wire-call-link call))))
    (cond ((< (link-held link) (ash (link-held-limit link) -1))
           (http2:credit-connection stream))
          (t (setf (link-dammed link) t)
             (when (tracing-p :flowctl) (tell-dam link :connection-window-withheld))
             (sb-thread:barrier (:memory))
             ;; readers may have taken enough just before they could see that the link is dammed
             (open-dam link)))
    nil))

(define-hot release-held ((call wire-call)) null
  "Take what CALL holds off its link."
  (let* ((inlet (call-wire-inlet call))
         (held (if inlet (shiftf (wire-inlet-held inlet) 0) 0)))
    (when (plusp held) (discharge call held)))
  nil)

(define-hot release-inlet ((call wire-call) (inlet wire-inlet)) null
  "See RELEASE-CALL; INLET is CALL's."
  (release-held call)
  (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; atomic, hence a raw word
    (discharge call (uncharge inlet (inlet-queued-octets inlet))))
  nil)

(define-hot (release-call :inline t) ((call wire-call)) null
  "Take all that CALL, whose stream is closed, is charged with off its link."
  (let ((inlet (call-wire-inlet call)))
    (when inlet (release-inlet call inlet)))
  nil)
