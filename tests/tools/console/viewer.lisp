;;;; Who looks: all that there is at first, then an update each second, and nothing for nobody.

(in-package #:clgrpc.tests.console)

(defun next-update (stream)
  (multiple-value-bind (name update) (next-event stream)
    (assert (string= "frame" name))
    update))

(test events-over-time
  (with-shown (console server channel)
    (ask channel (note 1))
    (with-events (stream console server)
      (multiple-value-bind (name hello) (next-event stream)
        (is (string= "hello" name))
        (let ((series (rows-of hello)))
          (dotimes (i 5) (ask channel (note 1)))
          (log-event :warning :something :reason "for who looks")
          ;; the next updates, until all is there
          (let ((updates (loop with end = (+ (monotonic-ns) (seconds-ns +patience+))
                               for update = (next-update stream)
                               collect update
                               do (setf series (append series (rows-of update)))
                               until (or (in-json update "log") (> (monotonic-ns) end)))))
            (is (= 6 (loop for (nil count) in (append (count-rows hello series)
                                                      (loop for update in updates
                                                            append (count-rows update series)))
                           sum count)))
            (is (equal (metric-rows console)
                       (count-rows (parse-json (write-json
                                                (console::hello console
                                                                (console::console-update-stream
                                                                 console))))
                                   series)))
            (let ((events (loop for update in updates
                                append (coerce (or (in-json update "log") #()) 'list))))
              (is (find "something" events :key (lambda (event) (in-json event "event"))
                                           :test #'string=)))
            (is (every (lambda (update) (< 0.9 (in-json update "seconds"))) updates)
                "no more than one a second")))))))

(test updates-are-rare-if-they-cost-much
  "Only what an update takes of the processor counts, not what it waits for."
  (flet ((after (spent-ns) (- (console::update-due-ns 5 spent-ns) 5)))
    (is (= +ns-per-second+ (after 0) (after 10000000)))
    (is (= (* 3 +ns-per-second+) (after 30000000))))
  (let ((begin (thread-time-ns)))
    (sb-thread:wait-on-semaphore (sb-thread:make-semaphore) :timeout 0.2)
    (is (> 100000000 (- (thread-time-ns) begin))))
  (let ((begin (thread-time-ns)))
    (loop until (< (+ begin 1000000) (thread-time-ns)))
    (is (< begin (thread-time-ns)))))

(test a-update-that-is-due-is-not-waited-for
  (let ((console (console:make-console)))
    (dolist (due-ns (list 0 (monotonic-ns) (+ (monotonic-ns) 1)))
      (is (null (console::wait-for-wake-up console due-ns))))
    (sb-thread:signal-semaphore (console::console-semaphore console))
    (is-true (console::wait-for-wake-up console (+ (monotonic-ns) (seconds-ns 60))))))

(test nobody-looks
  "Without somebody who looks there is no thread, and nothing is read."
  (with-shown (console server channel)
    (is (null (console::console-thread console)))
    (with-events (stream console server)
      (next-event stream)
      (is-true (console::console-thread console)))
    (eventually (null (console::console-thread console)))
    (let ((taken (console::update-stream-taken-ns (console::console-update-stream console))))
      (ask channel (note 1))
      ;; who comes back soon finds what was there
      (with-events (stream console server)
        (let ((hello (nth-value 1 (next-event stream))))
          (is (<= 2 (length (in-json hello "frames"))))
          (is (< taken
                 (console::update-stream-taken-ns (console::console-update-stream console)))))))))

(defun current-viewer (console)
  "The viewer of CONSOLE that has got all there is, once there is one."
  (wait-until (lambda ()
                (let ((viewers (console::console-viewers console)))
                  (and viewers (console::viewer-current (first viewers))))))
  (first (console::console-viewers console)))

(test a-slow-viewer
  "Updates wait for a viewer that does not read, up to a bound. It gets them once it reads; if there
were more, all there is."
  (dolist (too-many '(nil t))
    (with-shown (console server channel)
      (with-events (stream console server)
        (let* ((viewer (current-viewer console))
               (update-stream (console::console-update-stream console))
               (update (list (cons "text" (make-string 100000 :initial-element #\x)))))
          (flet ((waiting () (length (console::viewer-waiting viewer))))
            (is-true (loop repeat 1000
                           do (console::send-update console update-stream update (list viewer))
                           thereis (if too-many
                                       (not (console::viewer-current viewer))
                                       (plusp (waiting)))))
            ;; those that waited follow together once nothing else waits
            (is (> (+ console::+waiting-characters+ 200000)
                   (clgrpc.exchange::waiting-octets (console::viewer-request viewer))))
            (is (= (if too-many 2 1)
                   (loop with hellos = 0
                         when (string= "hello" (next-event stream)) do (incf hellos)
                         until (if too-many (= 2 hellos) (zerop (waiting)))
                         finally (return hellos))))))))))

(test updates-follow-a-long-hello
  "All there is may be longer than what may wait for a viewer; updates follow nevertheless."
  (with-shown (console server channel)
    (let ((update-stream (console::make-update-stream :taken-ns (monotonic-ns))))
      (setf (console::console-update-stream console) update-stream)
      (dotimes (i 300)
        (console::keep-update update-stream
                              (list (cons "time" (make-string 1000 :initial-element #\x)))))
      (with-events (stream console server)
        (is (equal '("hello" "frame" "frame" "frame")
                   (loop repeat 4 collect (next-event stream))))))))

(test several-look
  (with-shown (console server channel)
    (with-events (one console server)
      (next-event one)
      (with-events (other console server)
        (is (string= "hello" (next-event other)))
        (let ((update (next-update one)))
          (is (= (in-json update "time") (in-json (next-update other) "time")))))))
  (with-shown (console server channel)
    (labels ((look (left)
               (if (zerop left)
                   (is (= 503 (fetch server "/console/events" :headers (bearer console))))
                   (with-events (stream console server) (look (1- left))))))
      (look console::+viewers+))))

(test updates-that-fail-are-logged
  "The next is made all the same."
  (let ((failures 1) (console (console:make-console)))
    (with-probe (channel :server server :events (:console-error)
                 :options (list :observer console :http (list (console:console-handler console))))
        (:ask #'double)
      (with-replaced (('console::show-update (lambda (function &rest arguments)
                                               (if (minusp (decf failures))
                                                   (apply function arguments)
                                                   (error "broken")))))
        (with-events (stream console server)
          (next-event stream)
          (is-true (next-update stream))))
      (is (= 1 (length (events-of :console-error)))))
    (is-true (wait-until (lambda () (null (console::console-thread console)))))))
