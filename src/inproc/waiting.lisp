;;;; Calls that a client opens without waiting for an answer. A handler that may run on its client's
;;;; thread begins when the client waits for its call, so that no other thread is needed. But the
;;;; client may wait for another event, such as an effect of the handler; over the wire the handler
;;;; would begin at once. So each open call whose client does not wait is checked: if its handler
;;;; has not begun some time after the call was opened, the handler begins on another thread. A
;;;; server stream begins only when its client consumes it. If such a call has a deadline, or its
;;;; callee has a server, the call is registered with the callee, so that the deadline or the server
;;;; ends the call even if its client no longer uses it. CLOSE-CHANNEL ends the calls that wait.
;;;;
;;;; No call needs its own timer. A waiting call is in one of several lists of its inproc core: the
;;;; list for the place of the thread that opens the call (call-tally.lisp). When the next call is
;;;; added to a list, calls that have begun are dropped from it. While calls are being opened, a
;;;; timer of the inproc core fires; calls that it finds for the second time begin elsewhere.

(in-package #:clgrpc.inproc)

(defconstant +longest-wait-ns+ (* 20 1000 1000)
  "The time, in nanoseconds, after which a waiting call begins on another thread; it may take twice
as long.")

(define-hot (waiting-p :inline t) ((call-pair call-pair)) boolean
  (and (eq :waiting (call-pair-phase call-pair)) (null (call-pair-claim call-pair))))

(defun make-places (inproc-core)
  (let ((new (make-array (* +places+ +place-words+) :initial-element '())))
    (or (compare-and-swap (inproc-core-waiting inproc-core) nil new) new)))

(define-hot (watched-p :inline t) ((call-pair call-pair)) boolean
  "True if the waiting call of CALL-PAIR may begin or end without an action of its client: at a
certain time, or when its server stops."
  (or (not (rpc:takes-one-p (call-pair-server call-pair)))
      (plusp (call-deadline (call-pair-client call-pair)))
      (and (callee-server (call-pair-callee call-pair)) t)))

(define-hot look-after ((call-pair call-pair)) null
  "Make sure that the handler of CALL-PAIR, whose client has opened the call and does not wait for
it, begins soon; or, if the call streams responses, that the call ends in time."
  (let ((inproc-core (call-inproc-core (call-pair-client call-pair))))
    (when (waiting-p call-pair)
      (let ((watched (watched-p call-pair)))
        (unless (and (inproc-core-direct inproc-core) (not watched))
          (put-into-place inproc-core call-pair)
          (unless (or (inproc-core-watched inproc-core) (not watched)) (watch inproc-core))
          ;; the thread that closes the channel may have searched for calls before
          (unless (inproc-core-open inproc-core) (end-waiting inproc-core))))))
  nil)

(define-hot put-into-place ((inproc-core inproc-core) (call-pair call-pair)) null
  (let ((places (or (inproc-core-waiting inproc-core) (make-places inproc-core)))
        (place (place))
        (cell (list call-pair)))
    (loop for old = (svref places place)
          do (setf (cdr cell) (member-if #'waiting-p old))
          until (eq old (compare-and-swap (svref places place) old cell))))
  nil)

(defun empty-place (places place)
  "Empty the element of PLACES with the index PLACE; return the call pairs that were in the
element."
  (loop for old = (svref places place)
        until (eq old (compare-and-swap (svref places place) old '()))
        finally (return old)))

(defun end-waiting (inproc-core &optional (call-pairs '()))
  "End the calls of INPROC-CORE, whose channel is closed, that have not begun: the calls of
CALL-PAIRS and the calls in the places of INPROC-CORE."
  (flet ((end (call-pairs)
           (dolist (call-pair call-pairs)
             (when (waiting-p call-pair)
               (rpc:abort-as (call-pair-client call-pair) :channel-closed)))))
    (end call-pairs)
    (let ((places (inproc-core-waiting inproc-core)))
      (loop for place below (length places) by +place-words+
            do (end (empty-place places place))))))

(defun watch (inproc-core)
  "Start the timer that checks the calls of INPROC-CORE, unless it is running."
  (sb-sys:without-interrupts            ; a thread that sets WATCHED must start the timer
    (when (null (compare-and-swap (inproc-core-watched inproc-core) nil t))
      (ring-later (make-timer #'look-around inproc-core) inproc-core))))

(defun ring-later (timer inproc-core)
  (start-core-timer inproc-core timer
                    (status:deadline-in +longest-wait-ns+ (inproc-core-now inproc-core))))

(defun stop-waiting (call-pair)
  "Begin the call of CALL-PAIR elsewhere, or register it if it is a server stream."
  (if (rpc:takes-one-p (call-pair-server call-pair))
      (register call-pair)
      (begin-elsewhere call-pair)))

(defun look-around (inproc-core)
  "Begin elsewhere, or register, those calls of INPROC-CORE that have waited for long enough. On the
client's loop."
  (let ((overdue '()) (left nil) (places (inproc-core-waiting inproc-core)))
    (loop for place below (length places) by +place-words+
          do (dolist (call-pair (empty-place places place))
               (when (waiting-p call-pair)
                 (cond ((call-pair-overdue call-pair) (push call-pair overdue))
                       (t (setf (call-pair-overdue call-pair) t
                                left t)
                          (sb-ext:atomic-push call-pair (svref places place)))))))
    (when (and overdue (inproc-core-open inproc-core))
      (run-on-client-reserve inproc-core (lambda () (mapc #'stop-waiting overdue))))
    (setf (inproc-core-watched inproc-core) nil)
    (sb-thread:barrier (:memory))
    ;; a thread that opens a call from now on finds that no timer runs
    (cond ((not (inproc-core-open inproc-core)) (end-waiting inproc-core overdue))
          ((or left (loop for place below (length places) by +place-words+
                            thereis (svref places place)))
           (watch inproc-core)))))
