;;;; Names for addresses. The code in a saved core has the same position in the file in all
;;;; processes of the program, and no collection moves it. So a process finds the names of functions
;;;; of another process of the same program by their positions in the file. Code that was made
;;;; later, such as CLOS's dispatch functions, and all code of another program, is known only to its
;;;; own image, which writes perf's table of it (src/program/perf-map.lisp) on request.

(in-package #:clgrpc.profile)

;;; Tables

(defstruct (ranges (:copier nil))
  "Named ranges that do not overlap, in the order of their beginnings."
  (starts (vector) :type simple-vector :read-only t)
  (ends (vector) :type simple-vector :read-only t)
  (names (vector) :type simple-vector :read-only t)) ; strings, or arguments of FUNCTION-LABEL

(defun rows-ranges (rows)
  "RANGES of ROWS, lists (start octets name)."
  (let ((rows (sort (coerce rows 'simple-vector) #'< :key #'first)))
    (make-ranges :starts (map 'simple-vector #'first rows)
                 :ends (map 'simple-vector (lambda (row) (+ (first row) (second row))) rows)
                 :names (map 'simple-vector #'third rows))))

(defun find-range (ranges place)
  "The name of the range among RANGES that contains PLACE, or nil if no range does."
  (let* ((starts (ranges-starts ranges))
         (low 0) (high (length starts)))
    (loop while (< low high)
          do (let ((middle (ash (+ low high) -1)))
               (if (<= (svref starts middle) place) (setf low (1+ middle)) (setf high middle))))
    (and (plusp low)
         (< place (svref (ranges-ends ranges) (1- low)))
         (svref (ranges-names ranges) (1- low)))))

(defconstant +map-seconds+ 10
  "The maximum number of seconds that a process takes to write its table.")

(defun takes-signal-p (pid signal)
  "True if the process PID has a handler for SIGNAL, a number."
  (let ((word (second (member "SigCgt:" (file-words (format nil "/proc/~D/status" pid))
                              :test #'string=))))
    (and word (logbitp (1- signal) (parse-integer word :radix 16)))))

(defun asked-perf-map (pid)
  "The path of the table of the process PID. If RUN-SERVER runs in that process, request a new
table; else the table is one that the process wrote at an earlier request, and may be missing."
  (let ((path (format nil "/tmp/perf-~D.map" pid)))
    (when (and (not (same-program-p pid)) (takes-signal-p pid os:+sigio+))
      (ignore-errors (delete-file path))
      (sb-unix:unix-kill pid os:+sigio+)
      (loop repeat (* 20 +map-seconds+)
            until (probe-file path)
            do (sleep 1/20)))
    path))

(defun read-perf-map (path)
  "The RANGES in the file at PATH, in the form that WRITE-PERF-MAP writes, or nil if the file does
not exist. Malformed lines are skipped, because another user, or another program, may have written
them."
  (with-open-file (stream path :if-does-not-exist nil
                               :external-format '(:utf-8 :replacement #\?))
    (and stream
         (rows-ranges
          (loop for line = (read-line stream nil)
                while line
                for first = (position #\Space line)
                for second = (and first (position #\Space line :start (1+ first)))
                for address = (parse-integer line :end first :radix 16 :junk-allowed t)
                for octets = (and second (parse-integer line :start (1+ first) :end second
                                                             :radix 16 :junk-allowed t))
                when (and address octets (not (minusp address)) (plusp octets))
                  collect (list address octets (subseq line (1+ second))))))))

;;; The positions of files in memory

(defstruct (mapping (:copier nil))
  "A row of /proc/PID/maps: a part of a file in memory."
  (start 0 :type unsigned-byte :read-only t)
  (end 0 :type unsigned-byte :read-only t)
  (offset 0 :type unsigned-byte :read-only t) ; the offset in the file
  (path "" :type string :read-only t))

(defun parse-mapping (line)
  "The MAPPING that LINE of /proc/PID/maps means, or nil if it does not map a file."
  (let* ((dash (position #\- line))
         (slash (position #\/ line))
         (words (uiop:split-string (subseq line 0 slash) :separator " ")))
    (when (and dash slash)
      (make-mapping :start (parse-integer line :end dash :radix 16)
                    :end (parse-integer line :start (1+ dash) :radix 16 :junk-allowed t)
                    :offset (parse-integer (third words) :radix 16)
                    :path (subseq line slash)))))

(defun read-mappings (pid)
  "The mappings of files of the process PID, an integer or \"self\"."
  (with-open-file (stream (format nil "/proc/~A/maps" pid) :external-format :latin-1)
    (loop for line = (read-line stream nil)
          while line
          for mapping = (parse-mapping line)
          when mapping collect mapping)))

(defun program-path (pid)
  "The path of the program that the process PID, or \"self\", runs; nil if it cannot be read."
  (values (sb-unix:unix-readlink (format nil "/proc/~A/exe" pid))))

(defun program-functions ()
  "The RANGES of the functions in the file of this image, in the order of their places in the file."
  (let ((mappings (remove (program-path "self") (read-mappings "self")
                          :key #'mapping-path :test-not #'equal))
        (rows '()))
    (map-functions
     (lambda (name address octets)
       (when-let ((mapping (find-if (lambda (mapping)
                                      (and (<= (mapping-start mapping) address)
                                           (< address (mapping-end mapping))))
                                    mappings)))
         (push (list (+ (- address (mapping-start mapping)) (mapping-offset mapping)) octets
                     name)
               rows))))
    (rows-ranges rows)))

(defun same-program-p (pid)
  "True if the process PID runs the same program as this process."
  (flet ((identity-of (pid)
           (multiple-value-bind (found device inode)
               (sb-unix:unix-stat (format nil "/proc/~A/exe" pid))
             (and found (cons device inode)))))
    (let ((own (identity-of "self")))
      (and own (equal own (identity-of pid))))))
