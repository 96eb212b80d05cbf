;;;; Names for addresses. Code of a saved core lies where it lay when it was saved, in the file as
;;;; in memory, and no collection moves it; so any process of the same program can tell the names of
;;;; another's functions by their place in the file. Code that was made since, such as CLOS's
;;;; dispatch functions, is known to its own image only, which writes perf's table of it:
;;;; /tmp/perf-PID.map, lines of `ADDRESS OCTETS NAME` in hexadecimal.

(in-package #:clgrpc.profile)

(defun map-functions (function)
  "Call FUNCTION with name, address and octets of each function of this image."
  (declare (type function function))
  (dolist (code (sb-vm::list-allocated-objects :all :type sb-vm:code-header-widetag))
    (let* ((start (sb-sys:sap-int (sb-kernel:code-instructions code)))
           (end (+ start (sb-kernel:%code-text-size code)))
           (count (sb-kernel:code-n-entries code)))
      (flet ((address (i)
               (- (sb-kernel:get-lisp-obj-address (sb-kernel:%code-entry-point code i))
                  sb-vm:fun-pointer-lowtag)))
        (cond ((eq code sb-fasl:*assembler-routines*)
               (map-assembler-routines function code end))
              ((zerop count)
               (funcall function (sb-kernel:%code-debug-info code) start (- end start)))
              (t (dotimes (i count)
                   (let ((from (if (zerop i) start (address i)))
                         (to (if (< (1+ i) count) (address (1+ i)) end)))
                     (funcall function
                              (sb-kernel:%simple-fun-name (sb-kernel:%code-entry-point code i))
                              from (- to from))))))))))

(defun map-assembler-routines (function code end)
  (let ((rows '())
        (start (sb-sys:sap-int (sb-kernel:code-instructions code))))
    (maphash (lambda (name place) (push (cons (+ start (first place)) name) rows))
             (sb-kernel:%code-debug-info code))
    (loop for ((address . name) . rest) on (sort rows #'< :key #'car)
          do (funcall function name address (- (if rest (caar rest) end) address)))))

(defun function-label (name)
  "NAME, whatever it is, in one line of lower case, symbols with their packages but for those of
COMMON-LISP."
  (let ((*package* (find-package '#:common-lisp)) (*print-pretty* nil) (*print-length* 6)
        (*print-level* 4))
    (substitute #\Space #\Newline
                (if (stringp name)
                    (format nil "~S" name)
                    (string-downcase (handler-case (prin1-to-string name)
                                       (error () "?")))))))

(defun write-perf-map (&optional (path (format nil "/tmp/perf-~D.map" (sb-unix:unix-getpid))))
  "Write to PATH where each function of this image lies, as perf reads it, and return PATH. What is
compiled or moved by a collection later is not in it."
  (with-open-file (stream path :direction :output :if-exists :supersede :external-format :utf-8)
    (map-functions (lambda (name address octets)
                     (format stream "~(~X ~X~) ~A~%" address octets (function-label name)))))
  path)

;;; Tables

(defstruct (ranges (:copier nil))
  "Named ranges that do not overlap, by where they begin."
  (starts (vector) :type simple-vector :read-only t)
  (ends (vector) :type simple-vector :read-only t)
  (names (vector) :type simple-vector :read-only t)) ; strings, or what FUNCTION-LABEL takes

(defun rows-ranges (rows)
  "RANGES of ROWS, lists (start octets name)."
  (let ((rows (sort (coerce rows 'simple-vector) #'< :key #'first)))
    (make-ranges :starts (map 'simple-vector #'first rows)
                 :ends (map 'simple-vector (lambda (row) (+ (first row) (second row))) rows)
                 :names (map 'simple-vector #'third rows))))

(defun find-range (ranges place)
  "The name of the one of RANGES that PLACE is in, or nil."
  (let* ((starts (ranges-starts ranges))
         (low 0) (high (length starts)))
    (loop while (< low high)
          do (let ((middle (ash (+ low high) -1)))
               (if (<= (svref starts middle) place) (setf low (1+ middle)) (setf high middle))))
    (and (plusp low)
         (< place (svref (ranges-ends ranges) (1- low)))
         (svref (ranges-names ranges) (1- low)))))

(defun read-perf-map (path)
  "RANGES of the file at PATH, as WRITE-PERF-MAP writes it; nil if there is none."
  (with-open-file (stream path :if-does-not-exist nil :external-format :utf-8)
    (and stream
         (rows-ranges
          (loop for line = (read-line stream nil)
                while line
                for first = (position #\Space line)
                for second = (and first (position #\Space line :start (1+ first)))
                when second
                  collect (list (parse-integer line :end first :radix 16)
                                (parse-integer line :start (1+ first) :end second :radix 16)
                                (subseq line (1+ second))))))))

;;; Where files lie in memory

(defstruct (mapping (:copier nil))
  "A row of /proc/PID/maps: a part of a file in memory."
  (start 0 :type unsigned-byte :read-only t)
  (end 0 :type unsigned-byte :read-only t)
  (offset 0 :type unsigned-byte :read-only t) ; in the file
  (path "" :type string :read-only t))

(defun parse-mapping (line)
  "The MAPPING that LINE of /proc/PID/maps means, or nil if it is none of a file."
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
  "The path of the program that the process PID, or \"self\", runs; nil if that is not to be seen."
  (values (sb-unix:unix-readlink (format nil "/proc/~A/exe" pid))))

(defun program-functions ()
  "RANGES of the functions that this image has from its file, by place in the file."
  (let ((mappings (remove (program-path "self") (read-mappings "self")
                          :key #'mapping-path :test-not #'equal))
        (rows '()))
    (map-functions
     (lambda (name address octets)
       (let ((mapping (find-if (lambda (mapping)
                                 (and (<= (mapping-start mapping) address)
                                      (< address (mapping-end mapping))))
                               mappings)))
         (when mapping
           (push (list (+ (- address (mapping-start mapping)) (mapping-offset mapping)) octets
                       name)
                 rows)))))
    (rows-ranges rows)))

(defun same-program-p (pid)
  "True if the process PID runs the program that this one runs."
  (flet ((identity-of (pid)
           (multiple-value-bind (found device inode)
               (sb-unix:unix-stat (format nil "/proc/~A/exe" pid))
             (and found (cons device inode)))))
    (let ((own (identity-of "self")))
      (and own (equal own (identity-of pid))))))
