;;;; Listeners: streams of watches, as the engine sees them. The watches of all listeners are in one
;;;; tree of ranges, so a change finds those that it concerns, and costs nothing for the others.
;;;;
;;;; A watch is CAUGHT-UP, or it is among those of its listener that are READY. A watch is caught up
;;;; if it has sent all present changes. Then NOTE-CHANGES makes the watch ready at the first change
;;;; that concerns it. A watch that begins in the past is ready at first.
;;;;
;;;; All data of watches and listeners are changed while the engine's lock is held.

(in-package #:clgrpc.memory)

(defstruct (listener (:constructor nil) (:copier nil))
  "An object that is informed of changes."
  (function nil :type (or null function)) ; a function of no arguments to call if a watch is ready
  (ready (make-fifo) :type fifo :read-only t) ; the watches that may have something to send
  (called nil :type boolean)            ; the engine's thread must call the listener
  (noted 0 :type (signed-byte 64))      ; when NOTE-CHANGES last returned the listener, a revision
  (due-ns most-positive-fixnum :type (integer 0)) ; when the listener must be called in any case
  (watch-count 0 :type index))          ; the listener's watches in the tree

(defstruct (watch (:include range) (:copier nil))
  "A watch of a stream, of the changes in its range."
  (listener nil :type listener :read-only t) ; the listener that sends the changes
  (number 0 :type (signed-byte 64) :read-only t) ; the id by which the client knows the watch
  (filters '() :type list :read-only t) ; :noput and :nodelete, the omitted kinds
  (previous nil :type boolean :read-only t) ; send the entry before a change, too
  (fragment nil :type boolean :read-only t) ; a revision may be sent in several responses
  (progress nil :type boolean :read-only t) ; true: send progress now and then
  (next 0 :type (signed-byte 64))       ; the watch has sent nothing from here on
  ;; how many first changes of the revision NEXT the watch has already sent
  (passed 0 :type index)
  (caught-up nil :type boolean)         ; see above
  (dropped nil :type boolean)           ; the watch is no longer in the tree
  (sent-ns 0 :type (integer 0)))        ; when the watch last sent something

(declaim (sb-ext:freeze-type watch))

(define-printer (watch watch)
  "~D, next revision ~D~:[~;, dropped~]" (watch-number watch) (watch-next watch)
  (watch-dropped watch))

(defun place-of-range (start serial)
  "The key of a range that begins at START, in a tree of ranges, which is sorted by the starts. The
key is unique, since SERIAL is. In the key each zero of START is followed by one, and the end of
START is marked by zero."
  (let ((place (make-octets (+ (length start) (count 0 start) 2 8))) (at 0))
    (declare (type index at))
    (flet ((add (octet)
             (setf (aref place at) octet)
             (incf at)))
      (loop for octet across start
            do (add octet)
               (when (zerop octet) (add 1)))
      (add 0)
      (add 0)
      (loop for shift from 56 downto 0 by 8
            do (add (ldb (byte 8 shift) serial))))
    place))

(defun told-p (watch change)
  "True if WATCH must send CHANGE."
  (let ((key (item-key (change-item change))) (end (watch-end watch)))
    (and (not (before-p key (watch-start watch)))
         (or (null end) (before-p key end))
         (not (member (if (removal-p change) :nodelete :noput) (watch-filters watch))))))

(defun make-ready (watch)
  "Note that WATCH may have messages to send."
  (setf (watch-caught-up watch) nil)
  (enqueue watch (listener-ready (watch-listener watch))))

(defconstant +most-looks+ 100000
  "The maximum number of pairs of a change and a watch that NOTE-CHANGES examines, to see whether
the change concerns the watch. The examination takes some milliseconds, during which the lock is
held.")

(defun note-changes (watches store from)
  "Make ready those watches of WATCHES, a tree, that revisions of STORE from FROM on concern. When
the checks would take too long, make all the rest ready. Return the listeners that must be called
then, each once."
  (let ((newest (store-revision store)) (listeners '()) (left +most-looks+))
    (flet ((note (watch revision)
             (when (and (watch-caught-up watch) (<= (watch-next watch) newest))
               (setf (watch-next watch) (max (watch-next watch) revision)
                     (watch-passed watch) 0)
               (make-ready watch)
               (let ((listener (watch-listener watch)))
                 (unless (= newest (shiftf (listener-noted listener) newest))
                   (push listener listeners))))))
      (when watches
        (loop for revision from (max from (store-first store)) to newest
              while (plusp left)
              do (loop for change across (record-changes (record-at store revision))
                       while (plusp left)
                       do (map-around (lambda (watch)
                                        (decf left)
                                        (when (and (<= (watch-next watch) revision)
                                                   (told-p watch change))
                                          (note watch revision)))
                                      watches (item-key (change-item change))))
                 (unless (plusp left)
                   (map-range (lambda (watch) (note watch revision)) watches (octets-of) nil))))
      (nreverse listeners))))
