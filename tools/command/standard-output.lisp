;;;; Streams for the command: its standard output and standard error, for text in UTF-8 and octets,
;;;; and its standard input, for octets.
;;;;
;;;; When the reader of a pipe goes away in the middle of a write, SBCL's own streams wait for ever
;;;; until the pipe can be written, and use a whole processor while they wait. The streams of this
;;;; file write until the kernel refuses. When the reader of a command's standard output closes the
;;;; pipe, it needs no more: the command ends without a message, with the code +EXIT-BROKEN-PIPE+. A
;;;; standard error without a reader is lost.
;;;;
;;;; A line that could only be written in part, as on a full disk, is ended before the next one.

(in-package #:clgrpc.tools)

(defconstant +exit-broken-pipe+ 141
  "The exit code if the reader of the output, such as `head`, has closed the pipe. It is the code of
a process that SIGPIPE has ended.")

(defconstant +output-octets+ 65536 "The number of octets that a stream gathers before it writes
them.")

(define-condition output-error (stream-error)
  ((reason :initarg :reason :reader output-error-reason))
  (:report (lambda (condition stream)
             (format stream "cannot write to ~A: ~A"
                     (output-name (stream-error-stream condition))
                     (output-error-reason condition))))
  (:documentation "Output cannot be written; REASON is the system's text for the cause."))

(defclass output (sb-gray:fundamental-character-output-stream
                  sb-gray:fundamental-binary-output-stream)
  ((descriptor :initarg :descriptor :reader output-descriptor)
   (name :initarg :name :reader output-name) ; the name for error messages
   ;; a function that is called when the reader has gone
   (unread :initarg :unread :reader output-unread)
   (gathered :initform (make-buffer) :reader output-gathered) ; octets to be written
   (column :initform 0 :accessor output-column) ; how many characters the last line has
   (last :initform 10 :accessor output-last) ; the last octet that was written
   (torn :initform nil :accessor output-torn) ; true: the rest of the last line is lost
   (lock :initform (sb-thread:make-mutex :name "clgrpc output") :reader output-lock))
  (:documentation "A stream that writes to a descriptor. From any thread."))

(define-printer (output output)
  "~A" (output-name output))

(defun await-room (output)
  "Wait, for at most a second, until OUTPUT's descriptor, which does not block, may accept more
octets."
  (sb-sys:wait-until-fd-usable (output-descriptor output) :output 1 nil))

(defun fail-output (output result)
  "Handle the failure of a write to OUTPUT; RESULT is the value of the system call."
  (setf (output-torn output) (/= 10 (output-last output)))
  (if (= result (- os:+epipe+))
      (funcall (output-unread output))
      (error 'output-error :stream output :reason (os:errno-text result))))

(defun write-gathered (output)
  "Write the gathered octets of OUTPUT. If a write fails, the octets are lost: signal OUTPUT-ERROR
or, if the reader has closed the pipe, call the function UNREAD."
  (let* ((gathered (output-gathered output))
         (octets (buffer-octets gathered))
         (at (buffer-start gathered))
         (end (buffer-end gathered)))
    (clear-buffer gathered)
    (loop while (< at end)
          do (let ((result (os:write-octets (output-descriptor output) octets at end)))
               (cond ((not (os:failed-p result))
                      (incf at result)
                      (setf (output-last output) (aref octets (1- at))))
                     ((= result (- os:+eagain+)) (await-room output))
                     (t (return (fail-output output result))))))))

(defun gather (output octets)
  "Add OCTETS to the gathered octets of OUTPUT, and write these when they are enough."
  (let ((gathered (output-gathered output)))
    (when (shiftf (output-torn output) nil) (append-octet gathered 10))
    (append-octets gathered octets)
    (when (<= +output-octets+ (buffer-fill gathered)) (write-gathered output))))

(defmacro with-output-lock ((output) &body body)
  `(sb-thread:with-recursive-lock ((output-lock ,output)) ,@body))

(defmethod sb-gray:stream-write-string ((output output) string &optional (start 0) end)
  (let* ((text (subseq string start end)) (newline (position #\Newline text :from-end t)))
    (with-output-lock (output)
      (setf (output-column output)
            (if newline (- (length text) newline 1) (+ (output-column output) (length text))))
      (gather output (string-octets text))
      (when newline (write-gathered output))))
  string)

(defmethod sb-gray:stream-write-char ((output output) character)
  (sb-gray:stream-write-string output (string character))
  character)

(defmethod sb-gray:stream-line-column ((output output))
  (output-column output))

(defmethod sb-gray:stream-write-byte ((output output) octet)
  (with-output-lock (output) (gather output (octets-of octet)))
  octet)

(defmethod sb-gray:stream-write-sequence ((output output) sequence &optional (start 0) end)
  (if (stringp sequence)
      (sb-gray:stream-write-string output sequence start end)
      (with-output-lock (output) (gather output (coerce (subseq sequence start end) 'octets))))
  sequence)

(defmethod sb-gray:stream-finish-output ((output output))
  (with-output-lock (output) (write-gathered output)))

(defmethod sb-gray:stream-force-output ((output output))
  (sb-gray:stream-finish-output output))

;;; Standard output and standard error

(defvar *unread-caught* nil "True in a thread that evaluates the body of WITH-UNREAD-OUTPUT.")

(defun end-unread ()
  "End the command, because the reader of the standard output has closed the pipe: unwind its
thread, so that it can clean up, or else end the process."
  (if *unread-caught*
      (throw 'output-unread +exit-broken-pipe+)
      (sb-ext:exit :code +exit-broken-pipe+ :abort t)))

(defmacro with-unread-output (&body body)
  "Evaluate BODY and return its value. As soon as the reader of the standard output has closed the
pipe, leave BODY and return +EXIT-BROKEN-PIPE+."
  `(let ((*unread-caught* t))
     (catch 'output-unread ,@body)))

(defun make-standard-output ()
  (make-instance 'output :descriptor 1 :name "standard output" :unread #'end-unread))

(defun make-standard-error ()
  (make-instance 'output :descriptor 2 :name "standard error" :unread (constantly nil)))
