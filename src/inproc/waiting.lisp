;;;; Calls that were opened and left alone. A handler that may run on the thread of its client
;;;; begins when that waits for it, so that it needs no thread of its own; but the client may wait
;;;; for something else, such as what the handler is to do. Over the wire it would begin at once. So
;;;; a call that its client goes on to feed is looked after: one that has not begun some time after
;;;; it was opened begins elsewhere.
;;;;
;;;; A call costs no timer. It is kept at one of the places of its site, that of the thread that
;;;; opens it (tally.lisp), in a list from which the calls that have begun go when the next is
;;;; opened; a timer of the site rings as long as calls are being opened, and has those begin that
;;;; it finds for the second time.

(in-package #:clgrpc.inproc)

(defconstant +patience-ns+ (* 20 1000 1000)
  "How long a call may wait, and again as long at most, before it begins elsewhere.")

(define-hot (waiting-p :inline t) ((line line)) boolean
  (and (eq :waiting (line-phase line)) (null (line-claim line))))

(defun make-places (site)
  (let ((new (make-array (* +places+ +place-words+) :initial-element '())))
    (or (compare-and-swap (site-waiting site) nil new) new)))

(define-hot look-after ((line line)) null
  "LINE's client has opened it and does not wait for it: have it begin before long."
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
  "Have a timer look after the calls of SITE, unless one does."
  (when (null (compare-and-swap (site-watched site) nil t))
    (ring-later (make-timer #'look-around site) site)))

(defun ring-later (timer site)
  (run-timer site timer (status:deadline-in +patience-ns+ (site-now site))))

(defun take-place (places place)
  (loop for old = (svref places place)
        until (eq old (compare-and-swap (svref places place) old '()))
        finally (return old)))

(defun look-around (site)
  "Have the calls of SITE that have waited for long enough begin elsewhere. On the client's loop."
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
