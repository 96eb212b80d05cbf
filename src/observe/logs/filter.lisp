;;;; Filters of the binary log, in the form of GRPC_BINARY_LOG_FILTER (gRFC A16): which methods are
;;;; logged, and how much of their metadata and messages.
;;;;
;;;;   filter   pattern ("," pattern)*                the empty filter logs nothing
;;;;   pattern  "*" limits                            the default
;;;;            service "/*" limits                   for the methods of a service
;;;;            service "/" method limits             for one method
;;;;            "-" service "/" method                for a method that is not logged
;;;;   limits   nothing: all is logged
;;;;            "{h}" or "{h:N}"                      metadata, N octets of it; no messages
;;;;            "{m}" or "{m:N}"                      N octets of each message; no metadata
;;;;            "{h;m}", each with ":N" or without    both
;;;;
;;;; The most exact pattern counts, wherever it stands. Two patterns for the same methods are an
;;;; error, and so is any other text: a filter with an error is refused as a whole.

(in-package #:clgrpc.logs)

(defstruct (limits (:copier nil))
  "The amount of data that is logged about a call."
  (header most-positive-fixnum :type unsigned-byte) ; octets of each metadata
  (message most-positive-fixnum :type unsigned-byte)) ; octets of each message

(defstruct (filter (:copier nil))
  "A parsed filter of the binary log."
  (default nil :type (or null limits))  ; the rule for all methods, or nil
  ;; maps "service/method", and "service" for all its methods, to LIMITS or :EXCLUDED
  (table (make-hash-table :test 'equal) :type hash-table :read-only t))

(declaim (sb-ext:freeze-type limits filter))

(defun refuse-filter (text why)
  "Signal that a filter is malformed: WHY is the error in its pattern TEXT."
  (misuse "The binary log's filter is wrong: ~S ~A." text why))

(defun limit-number-p (text)
  (and (plusp (length text)) (every (lambda (char) (char<= #\0 char #\9)) text)))

(defun parse-limit (text name pattern)
  "The number in TEXT, \"h\", \"h:N\" and so on, for NAME; nil if TEXT is about something else."
  (cond ((string= text name) most-positive-fixnum)
        ((and (< 1 (length text)) (string= name text :end2 1) (char= #\: (char text 1)))
         (unless (and (limit-number-p (subseq text 2)) (<= (length text) 20))
           (refuse-filter pattern "has a limit that is not a number"))
         (parse-integer text :start 2))))

(defun parse-limits (text pattern)
  "The LIMITS in TEXT, the part of PATTERN after its name."
  (if (string= text "")
      (make-limits)
      (let* ((end (1- (length text)))
             (parts (if (and (< 1 end) (char= #\{ (char text 0)) (char= #\} (char text end)))
                        (uiop:split-string (subseq text 1 end) :separator ";")
                        '()))
             (header (and parts (parse-limit (first parts) "h" pattern)))
             (message (and parts (parse-limit (first (last parts)) "m" pattern))))
        (unless (= (length parts) (+ (if header 1 0) (if message 1 0)))
          (refuse-filter pattern "has limits other than {h}, {m} and {h;m}"))
        (unless parts
          (refuse-filter pattern "has limits other than {h}, {m} and {h;m}"))
        (make-limits :header (or header 0) :message (or message 0)))))

(defun word-p (text &optional (more ""))
  "True if TEXT is a name: letters, digits, underscores and characters of MORE."
  (and (plusp (length text))
       (every (lambda (char)
                (or (and (< (char-code char) 128) (alphanumericp char))
                    (find char "_")
                    (find char more)))
              text)))

(defun split-name (text pattern)
  "The service and the method that TEXT, \"service/method\", names."
  (let ((slash (position #\/ text :from-end t)))
    (unless (and slash
                 (word-p (subseq text 0 slash) "./")
                 (or (string= "*" (subseq text (1+ slash))) (word-p (subseq text (1+ slash)))))
      (refuse-filter pattern "is neither *, nor SERVICE/METHOD or SERVICE/*, with limits or not"))
    (values (subseq text 0 slash) (subseq text (1+ slash)))))

(defun add-pattern (filter pattern)
  (let* ((excluded (and (plusp (length pattern)) (char= #\- (char pattern 0))))
         (start (if excluded 1 0))
         (brace (or (position #\{ pattern) (length pattern)))
         (name (subseq pattern start brace))
         (rest (subseq pattern brace)))
    (flet ((add (key value)
             (when (gethash key (filter-table filter))
               (refuse-filter pattern "is the second pattern for the same methods"))
             (setf (gethash key (filter-table filter)) value)))
      (cond ((and (string= name "*") (not excluded))
             (when (filter-default filter)
               (refuse-filter pattern "is the second pattern for the same methods"))
             (setf (filter-default filter) (parse-limits rest pattern)))
            (t (multiple-value-bind (service method) (split-name name pattern)
                 (cond ((and excluded (string= method "*"))
                        (refuse-filter pattern "excludes more than a method"))
                       ((and excluded (string/= rest ""))
                        (refuse-filter pattern "excludes a method, and has limits"))
                       (excluded (add name :excluded))
                       ((string= method "*") (add service (parse-limits rest pattern)))
                       (t (add name (parse-limits rest pattern))))))))))

(defun parse-filter (text)
  "The FILTER for TEXT; signal MISUSE if TEXT is invalid. The empty text logs nothing."
  (let ((filter (make-filter)))
    (unless (string= text "")
      (dolist (pattern (uiop:split-string text :separator ","))
        (add-pattern filter pattern)))
    filter))

(defun filter-empty-p (filter)
  (and (null (filter-default filter))
       (loop for value being the hash-values of (filter-table filter)
             always (eq value :excluded))))

(defun limits-for (filter path)
  "The LIMITS that FILTER has for the method of PATH, \"/service/method\", or nil if that is not
logged."
  (let* ((slash (position #\/ path :from-end t))
         (table (filter-table filter))
         (found (and slash
                     (plusp slash)
                     (or (gethash (subseq path 1) table)
                         (gethash (subseq path 1 slash) table)
                         (filter-default filter)))))
    (if (eq found :excluded) nil found)))
