;;;; The server of bench/parts/live.py: `clgrpc serve bench` in an image with much live data, a
;;;; table of CLGRPC_RECORDS small records, of which a thread replaces CLGRPC_RENEWALS a second.
;;;; Loaded after scripts/load.lisp with the arguments of `serve` in CLGRPC_SERVE. Once all records
;;;; are there it prints for each line on standard input, without collecting garbage, `heap=N
;;;; stopped=N`: the octets in use, and the milliseconds of processor time of the longest collection
;;;; since the line before.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/testee")

(defpackage #:clgrpc.live
  (:use #:cl))

(in-package #:clgrpc.live)

(defstruct record
  (id 0 :type fixnum)
  (name "" :type simple-base-string)
  (price 0d0 :type double-float))

(defun name-of (id)
  "The word record and nine digits."
  (let ((name (make-string 16 :element-type 'base-char :initial-element #\Space)))
    (replace name "record")
    (loop for i from 15 downto 7
          for rest = id then (floor rest 10)
          do (setf (char name i) (code-char (+ 48 (mod rest 10)))))
    name))

(defun new-record (id)
  (make-record :id id :name (name-of id) :price (float id 1d0)))

(defun renew (records per-second)
  "Replace RECORDS, PER-SECOND of them a second, with a pause after each hundredth of that number."
  (loop for id = 0 then (mod (+ id 7919) (hash-table-count records))
        for i from 1
        do (setf (gethash id records) (new-record id))
           (when (zerop (mod i (ceiling per-second 100))) (sleep 0.01))))

(let ((longest 0) (before 0))
  (defun note-collection ()
    (setf longest (max longest (- sb-ext:*gc-run-time* before))
          before sb-ext:*gc-run-time*))
  (defun tell-at-each-line ()
    (loop while (read-line *standard-input* nil)
          do (note-collection)
             (format t "heap=~D stopped=~,1F~%" (sb-kernel:dynamic-usage)
                     (* 1000 (/ (shiftf longest 0) internal-time-units-per-second)))
             (finish-output))))

(defun environment-number (name)
  (parse-integer (uiop:getenv name)))

(defun live ()
  (let* ((count (environment-number "CLGRPC_RECORDS"))
         (records (make-hash-table :size count)))
    (dotimes (id count)
      (setf (gethash id records) (new-record id)))
    (clgrpc:tune-collector)
    (push #'note-collection sb-ext:*after-gc-hooks*)
    (sb-thread:make-thread #'tell-at-each-line :name "tell")
    (renew records (environment-number "CLGRPC_RENEWALS"))))

(sb-thread:make-thread #'live :name "live")
(clgrpc.tools:run-command (uiop:split-string (uiop:getenv "CLGRPC_SERVE")))
