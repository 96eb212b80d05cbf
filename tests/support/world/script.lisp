;;;; The words of tests/support/dialogue, spoken to a connection of a world, from the view of what
;;;; is under test: (connects BYTE-CHANNEL-FUNCTION), (hears FRAME…), (says FRAME…), (silent),
;;;; (passes SECONDS), (hangs-up).

(in-package #:clgrpc.tests.world)

(defvar *world* nil "The world of the test.")
(defvar *end* nil "The peer's end that the words are of.")
(defvar *peers* nil "A table from ends to the state of their header compression.")

(defun peer-of (end)
  (or (gethash end *peers*)
      (setf (gethash end *peers*) (dialogue:make-peer))))

(defun connects (accept &key (peer "memory"))
  "Have ACCEPT, a function, take the byte channel of a new connection, whose other end, called PEER,
is the one that the words are of from now on. Return that end."
  (setf *peers* (or *peers* (make-hash-table :test 'eq))
        *end* (new-end *world* :peer peer))
  (call-in-world *world* (lambda () (funcall accept (end-byte-channel *end*))))
  *end*)

(defun hears (&rest frames)
  "FRAMES come in, in one piece."
  (say *world* *end* (dialogue:frames-octets (peer-of *end*) frames)))

(defun said ()
  "The frames that went out since the last look."
  (dialogue:read-frame-forms (peer-of *end*) (take-said *end*)))

(defun says (&rest frames)
  "Exactly FRAMES went out since the last look."
  (is (equalp (mapcar #'dialogue:canonical frames) (said))))

(defun silent ()
  "Nothing went out since the last look."
  (says))

(defun passes (seconds)
  "SECONDS pass."
  (incf (world-now *world*) (seconds-ns seconds))
  (run-turns *world*))

(defun hangs-up ()
  "The peer closes the connection."
  (stop-talking *world* *end*))
