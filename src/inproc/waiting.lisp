;;;; Calls that were opened and left alone. A handler that may run on its client's thread begins
;;;; when the client waits for it, so that it needs no thread of its own. But the client may wait
;;;; for something else, such as an effect of the handler; over the wire the handler would begin at
;;;; once. So each open call whose client does not wait is looked after: if it has not begun some
;;;; time after it was opened, it begins elsewhere.
;;;;
;;;; A call costs no timer. It is put into a list of its site, one of several, that of the place of
;;;; the thread that opens it (tally.lisp). When the next call is put there, those that have begun
;;;; are dropped from the list. While calls are being opened, a timer of the site rings; calls that
;;;; it finds for the second time begin elsewhere.

(in-package #:clgrpc.inproc)

(defconstant +patience-ns+ (* 20 1000 1000)
  "A call that waits begins elsewhere after so long, or after twice as long at the latest.")

(define-hot (waiting-p :inline t) ((line line)) boolean
  (and (eq :waiting (line-phase line)) (null (line-claim line))))

(defun make-places (site)
  (let ((new (make-array (* +places+ +place-words+) :initial-element '())))
    (or (compare-and-swap (site-waiting site) nil new) new)))

(define-hot look-after ((line line)) null
  "LINE's client has opened it and does not wait for its handler: make sure that it begins soon."
  (let* ((site (call-site (line-client line)))
         (places (or (site-waiting site) (make-places site)))
         (place (place))
         (cell (list line)))
    (when (waiting-p line)
      (loop for old = (svref places place)
            do (setf (cdr cell) (member-if #'waiting-p old))
            until (eq old (compare-and-swap (svref places place) old cell)))
      (unless (site-watched site) (watch site))))
  nil)

(defun watch (site)
  "Start the timer that looks after the calls of SITE, unless it runs."
  (sb-sys:without-interrupts            ; who sets it starts the timer
    (when (null (compare-and-swap (site-watched site) nil t))
      (ring-later (make-timer #'look-around site) site))))

(defun ring-later (timer site)
  (run-timer site timer (status:deadline-in +patience-ns+ (site-now site))))

(defun take-place (places place)
  (loop for old = (svref places place)
        until (eq old (compare-and-swap (svref places place) old '()))
        finally (return old)))

(defun look-around (site)
  "Begin the calls of SITE that have waited for long enough elsewhere. On the client's loop."
  (let ((overdue '()) (left nil) (places (site-waiting site)))
    (loop for place below (length places) by +place-words+
          do (dolist (line (take-place places place))
               (when (waiting-p line)
                 (cond ((line-overdue line) (push line overdue))
                       (t (setf (line-overdue line) t
                                left t)
                          (sb-ext:atomic-push line (svref places place)))))))
    (when (and overdue (site-open site))
      (run-aside site (lambda () (mapc #'begin-elsewhere overdue))))
    (setf (site-watched site) nil)
    (sb-thread:barrier (:memory))
    ;; who opens a call from now on finds that nobody watches
    (when (or left (loop for place below (length places) by +place-words+
                           thereis (svref places place)))
      (watch site))))
