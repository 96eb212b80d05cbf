;;;; Journals: lines, and logging that never waits.

(in-package #:clgrpc.tests.base)

(test wrong-arguments-of-a-writer
  "The text names the argument that was probably meant."
  (flet ((complaint (&rest arguments)
           (handler-case (progn (apply #'log-writer arguments) "")
             (misuse (error) (princ-to-string error)))))
    (is (string= ":LEVEL is :debug, :info, :warning, :error or :none, not :WARN (is it :warning?)."
                 (complaint :level :warn)))
    (is (string= ":LEVEL is :debug, :info, :warning, :error or :none, not 3."
                 (complaint :level 3)))
    (is (string= ":FORMAT is :text or :json, not :JSN." (complaint :format :jsn)))))

(defun logged (function &rest events)
  "The lines for EVENTS, logged by the log function that FUNCTION, a function of a stream, returns."
  (let* ((stream (make-string-output-stream)) ; not on the stack: another thread writes
         (*log-function* (funcall function stream)))
    (dolist (event events) (apply #'log-event event))
    (is (flush-log))
    (with-input-from-string (lines (get-output-stream-string stream))
      (loop for line = (read-line lines nil) while line collect line))))

(defun text-lines (&rest events)
  "As LOGGED, from :debug on, without the times."
  (loop for line in (apply #'logged (lambda (stream) (log-writer :stream stream :level :debug))
                           events)
        for space = (position #\Space line)
        collect (if (char= #\Space (char line 0)) line (subseq line (1+ space)))))

(test lines-of-text
  (is (equal '("INFO started port=80 ratio=0.5 name=x words=\"two words\" text=\"\"")
             (text-lines '(:info :started :port 80 :ratio 0.5d0 :name "x" :words "two words"
                           :none nil :text ""))))
  (is (equal '("TRACE http frame-sent flags=\"(end-stream 0.5 (1 . 2))\"")
             (text-lines '(:trace :frame-sent :tracer :http :flags (:end-stream 0.5d0 (1 . 2))))))
  (is (equal '("ERROR failed where=here" "    0: (F)" "    1: (G)")
             (text-lines (list :error :failed :backtrace (format nil "0: (F)~%1: (G)~%")
                                              :where :here)))))

(test lines-show-what-was-when-the-event-happened
  "The line of an event is made later only if its values last."
  (loop for (value lasting) in `((1 t) (0.5d0 t) (:a t) ("a" t) ((:a 0.5d0 ("b" nil)) t)
                                 (,(make-string 1000) t) (,(make-string 1001) nil)
                                 (,(loop repeat 100 collect t) t)
                                 (#(1) nil) (car nil) ((1 . 2) nil)
                                 (,(let ((list (list 1))) (setf (rest list) list)) nil)
                                 (,(make-array 1 :element-type 'character :fill-pointer 0) nil)
                                 ((((((1))))) nil) (,(loop repeat 101 collect 1) nil))
        do (is (eq lasting (and (clgrpc.base::lasting-p value) t)) "~A" (type-of value)))
  (let* ((vector (vector 1)) (stream (make-string-output-stream))
         (*log-function* (log-writer :stream stream :level :info)))
    (log-event :info :changed :vector vector)
    (setf (aref vector 0) 2)
    (is (flush-log))
    (is (search "vector=#(1)" (get-output-stream-string stream)))))

(test an-event-without-a-line-is-lost-alone
  "The journal's thread makes the lines of several events at once; an error in one spares others."
  (let ((before (lost-entries :events)))
    (is (equal '("INFO good a=1" "INFO good a=2")
               (text-lines '(:info :good :a 1) '(:info :bad :backtrace 5) '(:info :good :a 2))))
    (is (= (1+ before) (lost-entries :events)))))

(test peers-cannot-forge-lines
  "Text of a peer may have line ends, quotes and control characters."
  (is (equal '("WARNING goaway debug=\"a\\nERROR forged \\\"x\\\" \\x1b[31m\"")
             (text-lines (list :warning :goaway
                               :debug (format nil "a~%ERROR forged \"x\" ~C[31m"
                                              (code-char 27)))))))

(test lines-have-a-length
  "For any text of a peer, a value shows 1,000 characters, a line 16,384."
  (let ((long (make-string 4000000 :initial-element #\a)))
    (destructuring-bind (line) (text-lines (list :info :long :text long :port 80))
      (is (< 1000 (length line) 1100))
      (is (search "… port=80" line)))
    (destructuring-bind (line)
        (text-lines (list :info :many :list (loop repeat 100000 collect long) :port 80))
      (is (< 1000 (length line) 1100)))
    (destructuring-bind (line)
        (text-lines (list* :info :many (loop repeat 10000 collect :key collect long)))
      (is (< 16000 (length line) 17000)))
    (flet ((json (&rest event)
             (let ((lines (logged (lambda (stream) (log-writer :stream stream :format :json
                                                               :level :info))
                                  event)))
               (is (= 1 (length lines)))
               (parse-json (first lines))
               (first lines))))
      (is (< 1000 (length (json :info :long :text long)) 1200))
      (is (< (length (json :info :many :list (loop repeat 100000 collect long))) 20000))
      (is (< (length (json :info :many :list (loop repeat 100000 collect 1))) 40000))
      (is (< (length (json :info :many :plist (loop repeat 100000 collect :a collect long)))
             20000)))))

(test backtraces-cannot-forge-lines
  (let ((backtrace (format nil "0: (F~C[31m)~%1: (G ~A)~%" (code-char #x9B)
                           (make-string 4000000 :initial-element #\a))))
    (destructuring-bind (line frame next)
        (text-lines (list :error :failed :backtrace backtrace))
      (is (string= "ERROR failed" line))
      (is (string= "    0: (F\\x9b[31m)" frame))
      (is (< (length next) 1100)))))

(test journals-are-bounded-by-octets
  "Events with long texts are dropped long before there are 10,000 of them."
  (let* ((go-on (sb-thread:make-semaphore)) (entered (sb-thread:make-semaphore)) (events '())
         (*log-function* (log-in-background (lambda (&rest event)
                                              (sb-thread:signal-semaphore entered)
                                              (sb-thread:wait-on-semaphore go-on :timeout 20)
                                              (push event events)))))
    (log-event :info :first)
    (is (sb-thread:wait-on-semaphore entered :timeout 20))
    (loop repeat 100 do (log-event :info :long :text (make-string 1000000 :initial-element #\a)))
    (is (null (flush-log :timeout 0)) "FLUSH-LOG only looks")
    (sb-thread:signal-semaphore go-on 1000)
    (is (flush-log :timeout 20))
    (is (= 4 (count :long events :key #'second)))
    (is (equal '(:warning :events-dropped :count 96)
               (find :events-dropped events :key #'second)))))

(test lines-of-json
  (destructuring-bind (line)
      (logged (lambda (stream) (log-writer :stream stream :format :json))
              (list :error :failed :port 80 :ratio 1.5d0 :text (format nil "a~%\"b\"") :none nil
                                   :some t :names '("x" 2) :event-loop 'sym :pair '(1 . 2)
                                   :stages '(:total 1.5d0 :stage :wait)
                                   :flags '(:end-stream :end-headers)))
    (let ((object (parse-json line)))
      (flet ((member-of (name) (cdr (assoc name object :test #'string=))))
        (is (string= "error" (member-of "level")))
        (is (string= "failed" (member-of "event")))
        (is (= 80 (member-of "port")))
        (is (= 1.5d0 (member-of "ratio")))
        (is (string= (format nil "a~%\"b\"") (member-of "text")))
        (is (eq :null (member-of "none")))
        (is (eq :true (member-of "some")))
        (is (equalp #("x" 2) (member-of "names")))
        (is (string= "SYM" (member-of "event_loop")))
        (is (string= "(1 . 2)" (member-of "pair")))
        (is (equal '(("total" . 1.5d0) ("stage" . "wait")) (member-of "stages")))
        (is (equalp #("end-stream" "end-headers") (member-of "flags")))
        (is (char= #\Z (char (member-of "time") 26)))))))

(test lines-of-json-have-a-length
  "A long text is cut, a backtrace later; a number that JSON does not have becomes text."
  (flet ((member-of (name &rest event)
           (destructuring-bind (line)
               (logged (lambda (stream) (log-writer :stream stream :format :json))
                       (list* :error :failed event))
             (cdr (assoc name (parse-json line) :test #'string=))))
         (long (length) (make-string length :initial-element #\x)))
    (is (= clgrpc.base::+visible-characters+
           (length (member-of "a" :a (long clgrpc.base::+visible-characters+)))))
    (is (string= (format nil "~A…" (long clgrpc.base::+visible-characters+))
                 (member-of "a" :a (long (1+ clgrpc.base::+visible-characters+)))))
    (is (= 3000 (length (member-of "backtrace" :backtrace (long 3000)))))
    (is (string= (format nil "a~Cb" (code-char #xFFFD))
                 (member-of "a" :a (format nil "a~Cb" (code-char #xD800)))) "a lone surrogate")
    (is (stringp (member-of "a" :a sb-ext:double-float-positive-infinity)))
    (is (equalp #(1 2 3) (member-of "a" :a '(1 2 3))))
    (is (equalp #("a" 1 2) (member-of "a" :a '(:a 1 2))))))

(test times-are-utc
  (flet ((text (ns)
           (clgrpc.base::written (lambda (buffer) (clgrpc.base::append-iso-time buffer ns)))))
    (is (string= "1970-01-01T00:00:00.000000Z" (text 0)))
    (is (string= "2026-11-21T15:04:05.123456Z" (text 1795273445123456789)))
    (is (string= "2026-11-21T15:04:05.999999Z" (text 1795273445999999999)))
    (is (string= "2026-11-21T15:04:06.000001Z" (text 1795273446000001000)))))

(test lists-in-lines
  "A list of several plain words is in quotes; other elements of lists are shown as they are
elsewhere."
  (flet ((value (value)
           (subseq (first (text-lines (list :info :x :v value))) (length "INFO x v="))))
    (is (equal '("(a)" "\"(a 1 0.5 x)\"" "\"((1 2) 3)\"" "\"(a b c)\"" "\"(1 . 2)\"" "\"(x=y 1)\""
                 "\"(1 2 . 3)\"" "\"(NIL 1)\"")
               (mapcar #'value (list '(:a) '(:a 1 0.5d0 "x") '((1 2) 3) '("a b" "c") '(1 . 2)
                                     '("x=y" 1) '(1 2 . 3) '(nil 1)))))
    (is (string= "\"(a\\n b)\"" (value (list (format nil "a~%") "b"))))
    (is (<= 1000 (length (value (loop repeat 1000 collect :abc))) 1010))))

(test levels
  "Events below the level are omitted, those of tracers never."
  (flet ((events-at (level)
           (length (logged (lambda (stream) (log-writer :stream stream :level level))
                           '(:debug :a) '(:info :b) '(:warning :c) '(:error :d)
                           '(:trace :e :tracer :http)))))
    (is (equal '(5 4 3 2 1) (mapcar #'events-at '(:debug :info :warning :error :none)))))
  (signals error (log-writer :level :loud))
  (signals error (log-writer :format :xml)))

(defclass unprintable () ())
(defmethod print-object ((object unprintable) stream)
  (declare (ignore stream))
  (error "No."))

(test what-cannot-be-printed-is-logged-nevertheless
  (is (equal '("INFO odd thing=\"(cannot be printed)\"")
             (text-lines (list :info :odd :thing (make-instance 'unprintable))))))

(test logging-does-not-wait
  "A function that does not return delays no other; excess events are dropped, and counted."
  (let* ((lost (lost-entries :events))
         (go-on (sb-thread:make-semaphore)) (entered (sb-thread:make-semaphore)) (events '())
         (*log-function* (log-in-background (lambda (&rest event)
                                              (sb-thread:signal-semaphore entered)
                                              (sb-thread:wait-on-semaphore go-on :timeout 20)
                                              (push event events))
                                            :limit 10)))
    (log-event :info :first)
    (is (sb-thread:wait-on-semaphore entered :timeout 20))
    (loop for i below 100 do (log-event :info :event :number i))
    (is (null events) "the events were not written yet")
    (sb-thread:signal-semaphore go-on 1000)
    (is (flush-log))
    (setf events (reverse events))
    (is (equal '(:info :first) (pop events)))
    (is (equal '(:warning :events-dropped :count 90) (pop events)))
    (is (<= 90 (- (lost-entries :events) lost)) "and counted")
    (is (equal (loop for i below 10 collect (list :info :event :number i)) events))))

(test errors-in-the-background-are-contained
  (let* ((calls 0)
         (*log-function* (log-in-background (fn (&rest _event)
                                              (incf calls)
                                              (log-event :error :again)
                                              (error "broken")))))
    (loop repeat 3 do (log-event :info :event))
    (is (flush-log))
    (is (= 3 calls))))

(test streams-that-fail-are-survived
  (let* ((stream (make-string-output-stream))
         (lost (lost-entries :events))
         (*log-function* (log-writer :stream stream :level :info)))
    (close stream)
    (finishes (log-event :info :lost))
    (let ((begin (monotonic-ns)))
      (flush-log :timeout 60)
      (is (> (seconds-ns 50) (- (monotonic-ns) begin))
          "FLUSH-LOG does not wait for what cannot be written"))
    (is (= 1 (- (lost-entries :events) lost)) "and the lost event is counted")))

(test threads-that-are-made-to-leave-do-not-end-a-journal
  "A time-out unwinds a thread that has just noted that the journal's thread runs."
  (let* ((ours sb-thread:*current-thread*) (count 0)
         (log (log-in-background (lambda (&rest event) (declare (ignore event)) (incf count)))))
    (with-replaced (('clgrpc.base::start-journal
                     (lambda (function &rest arguments)
                       (when (eq ours sb-thread:*current-thread*)
                         (sb-thread:interrupt-thread ours (lambda () (throw 'left :left))))
                       (apply function arguments))))
      (is (eq :left (catch 'left (funcall log :info :one)))))
    (funcall log :info :two)
    (is (flush-log :timeout 20))
    (is (= 2 count))))

(test journals-end-before-the-image-is-saved
  (let ((*log-function* (log-in-background #'list)))
    (log-event :info :event)
    (clgrpc.base::end-journals)
    (is (notany (lambda (thread) (string= "clgrpc log" (sb-thread:thread-name thread)))
                (sb-thread:list-all-threads)))
    ;; and begin again
    (log-event :info :event)
    (is (flush-log))
    (clgrpc.base::end-journals)))

(defun announced (verbosity trace)
  "Two values after VERBOSITY and TRACE were read: the tracers that are on, and the log function."
  (flet ((get-variable (name)
           (cdr (assoc name `(("GRPC_VERBOSITY" . ,verbosity) ("GRPC_TRACE" . ,trace))
                       :test #'string=))))
    (with-changed (((sb-ext:symbol-global-value '*log-function*) nil) ((tracers)))
      (clgrpc.base::forget-environment)
      (clgrpc.base:read-environment #'get-variable)
      (clgrpc.base:read-environment (constantly "all"))
      (list (tracers) (and (sb-ext:symbol-global-value '*log-function*) t)))))

(test environment
  "It is read once; the tracers that it names are switched on, and without it nothing is printed."
  (is (equal '(() nil) (announced nil nil)))
  (is (equal '(() t) (announced "debug" nil)))
  (is (equal '(() t) (announced "NONE" nil)))
  (is (equal '((:http :tcp) t) (announced nil "http,tcp")))
  (with-logged (events :unknown-tracers)
    (is (equal '((:http) t) (announced "INFO" "http,nonsense")))
    (is (equal '((:warning :unknown-tracers :names ("nonsense"))) (events))))
  (is (equal '(() nil) (announced "nonsense" ""))))

(test the-lock-of-a-journal-is-taken
  "So no entry is added to a list that the journal's thread is taking."
  (let ((journal (clgrpc.base::open-journal #'list 10)))
    (is (null (support:lockless (clgrpc.base::journal-lock journal)
                                `(clgrpc.base::add-to-journal ,journal (:info))
                                `(clgrpc.base::take-entries ,journal)
                                `(clgrpc.base::leave-journal-p ,journal))))))
