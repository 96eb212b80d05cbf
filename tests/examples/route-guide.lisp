;;;; RouteGuide's semantics, and the client's report of them.

(in-package #:clgrpc.tests.examples)

(defparameter *berkshire* "Berkshire Valley Management Area Trail, Jefferson, NJ, USA")

(test features-file
  (is (= 100 (length *known-features*)))
  (is (string= *berkshire* (routeguide:feature-name (aref *known-features* 0))))
  (is (= 100 (length (remove-duplicates (map 'list #'routeguide:feature-location *known-features*)
                                        :test #'point=)))
      "no two features at one place")
  (is (every (lambda (feature)
               (and (plusp (length (routeguide:feature-name feature)))
                    (inside-p (routeguide:feature-location feature)
                              (rectangle 400000000 -750000000 420000000 -730000000))))
             *known-features*)))

(test get-feature
  (with-service (channel (make-instance 'route-guide))
    (flet ((name-at (point)
             (let ((feature (routeguide.route-guide:get-feature channel point :timeout 10)))
               (is (point= point (routeguide:feature-location feature)))
               (routeguide:feature-name feature))))
      (is (string= *berkshire* (name-at (place 409146138 -746188906))))
      (is (string= "" (name-at (place 409146138 -746188907))) "near is not there")
      (is (string= "" (name-at (place 0 0)))))))

(test list-features
  (with-service (channel (make-instance 'route-guide))
    (is (equalp (map 'list #'routeguide:feature-name *known-features*)
                (feature-names channel (rectangle 400000000 -750000000 420000000 -730000000))))
    (is (member *berkshire*
                (feature-names channel (rectangle 409146138 -746188906 409146138 -746188906))
                :test #'string=))
    (is (null (feature-names channel (rectangle 1 1 2 2))))))

(test record-route
  (with-service (channel (make-instance 'route-guide))
    (flet ((record (&rest points)
             (routeguide.route-guide:record-route channel points :timeout 10)))
      (let ((summary (record (place 409146138 -746188906) (place 0 0) (place 0 10000000))))
        (is (= 3 (routeguide:route-summary-point-count summary)))
        (is (= 1 (routeguide:route-summary-feature-count summary)))
        (is (= (round (+ (distance-metres (place 409146138 -746188906) (place 0 0))
                         (distance-metres (place 0 0) (place 0 10000000))))
               (routeguide:route-summary-distance summary)))
        (is (<= 0 (routeguide:route-summary-elapsed-time summary) 5)))
      (let ((summary (record)))
        (is (= 0 (routeguide:route-summary-point-count summary)))
        (is (= 0 (routeguide:route-summary-distance summary)))))))

(defun chat (channel &rest notes)
  "Send NOTES, lists (text latitude longitude), one by one; return the texts heard."
  (let ((heard '()))
    (grpc:with-call (call (routeguide.route-guide:route-chat channel :open :timeout 10))
      (loop for (text latitude longitude) in notes
            do (grpc:send call (routeguide:make-route-note
                                :message text :location (place latitude longitude))))
      (grpc:close-send call)
      (grpc:do-messages (note call)
        (push (routeguide:route-note-message note) heard)))
    (nreverse heard)))

(test route-chat
  (with-service (channel (make-instance 'route-guide))
    (is (equal '("a" "b" "a" "c") (chat channel '("a" 0 1) '("b" 0 2) '("c" 0 1))))
    (is (equal '("a" "c" "d") (chat channel '("d" 0 1))) "notes are kept between calls")
    (is (null (chat channel)))))

(test route-chat-answers-at-once
  "A note is answered before the next is sent."
  (with-service (channel (make-instance 'route-guide))
    (grpc:with-call (call (routeguide.route-guide:route-chat channel :open :timeout 10))
      (loop for i below 20
            for text = (princ-to-string i)
            do (grpc:send call (routeguide:make-route-note :message text :location (place i 0)))
               (is (string= text (routeguide:route-note-message (grpc:receive call))))))))

(test client-report
  (with-service (channel (make-instance 'route-guide))
    (let ((report (with-output-to-string (*standard-output*)
                    (is-true (run-route-guide-client channel)))))
      (dolist (text (list *berkshire* "nothing known there" "100 features in all"
                          "100 points, 100 features passed" "heard \"Sixth message\""))
        (is (search text report) "~S is missing in ~A" text report))
      (is (= 9 (loop for start = 0 then (1+ found)
                     for found = (search "heard" report :start2 start)
                     while found count t))
          "six notes at three places are answered with nine"))))

(test client-reports-failure
  "A client of a server without RouteGuide gets the status that says so."
  (with-service (channel (make-instance 'greeter))
    (signals grpc:unimplemented
      (let ((*standard-output* (make-broadcast-stream)))
        (run-route-guide-client channel)))))
