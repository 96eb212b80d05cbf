;;;; A client of RouteGuide, whatever server it talks to: the four kinds of call, and in words what
;;;; came back. This is what `make demo` and `clgrpc routeguide-client` show.

(in-package #:clgrpc.examples)

(defparameter *call-timeout-seconds* 10 "What every call of the client is given.")

(defun run-route-guide-client (channel)
  "Make RouteGuide's four calls on CHANNEL; print to *STANDARD-OUTPUT* what they answer. Return
true. Signal the RPC-ERROR of the first call that fails."
  (show-feature channel (routeguide:make-point :latitude 409146138 :longitude -746188906))
  (show-feature channel (routeguide:make-point :latitude 0 :longitude 0))
  (let ((features (show-features channel (make-rectangle 400000000 -750000000
                                                         420000000 -730000000))))
    (show-route channel (if features
                            (mapcar #'routeguide:feature-location features)
                            (list (make-place 0 0) (make-place 10000000 10000000)))))
  (show-chat channel '(("First message" 0 10000000) ("Second message" 0 20000000)
                       ("Third message" 0 30000000) ("Fourth message" 0 10000000)
                       ("Fifth message" 0 20000000) ("Sixth message" 0 30000000)))
  t)

(defun make-place (latitude longitude)
  (routeguide:make-point :latitude latitude :longitude longitude))

(defun make-rectangle (latitude-1 longitude-1 latitude-2 longitude-2)
  (routeguide:make-rectangle :lo (make-place latitude-1 longitude-1)
                             :hi (make-place latitude-2 longitude-2)))

(defun place-text (point)
  "POINT in degrees."
  (if point
      (format nil "~,7F, ~,7F" (* 1d-7 (routeguide:point-latitude point))
              (* 1d-7 (routeguide:point-longitude point)))
      "nowhere"))

(defun show (control &rest arguments)
  (format t "~?~%" control arguments)
  (finish-output))

(defun show-feature (channel point)
  "GetFeature is a unary call: it returns the reply."
  (show "GetFeature at ~A" (place-text point))
  (let ((feature (routeguide.route-guide:get-feature channel point
                                                     :timeout *call-timeout-seconds*)))
    (if (string= "" (routeguide:feature-name feature))
        (show "  nothing known there")
        (show "  ~A" (routeguide:feature-name feature)))))

(defun show-features (channel rectangle)
  "ListFeatures streams its replies: it returns a call to iterate. Return the features."
  (show "ListFeatures from ~A to ~A" (place-text (routeguide:rectangle-lo rectangle))
        (place-text (routeguide:rectangle-hi rectangle)))
  (let ((features '()))
    (grpc:do-messages (feature (routeguide.route-guide:list-features
                                channel rectangle :timeout *call-timeout-seconds*))
      (push feature features)
      (when (<= (length features) 3)
        (show "  ~A: ~A" (place-text (routeguide:feature-location feature))
              (routeguide:feature-name feature))))
    (show "  ~:[~*~;… ~]~D feature~:P in all" (> (length features) 3) (length features))
    (nreverse features)))

(defun show-route (channel points)
  "RecordRoute streams its requests, here a list: it returns the reply."
  (show "RecordRoute along ~D point~:P" (length points))
  (let ((summary (routeguide.route-guide:record-route channel points
                                                      :timeout *call-timeout-seconds*)))
    (show "  ~D points, ~D features passed, ~:D metres, ~D s"
          (routeguide:route-summary-point-count summary)
          (routeguide:route-summary-feature-count summary)
          (routeguide:route-summary-distance summary)
          (routeguide:route-summary-elapsed-time summary))))

(defun show-chat (channel notes)
  "RouteChat streams both ways: with :OPEN it returns a call to send on and receive from. NOTES are
lists of text, latitude and longitude."
  (show "RouteChat with ~D note~:P" (length notes))
  (grpc:with-call (call (routeguide.route-guide:route-chat channel :open
                                                           :timeout *call-timeout-seconds*))
    (loop for (text latitude longitude) in notes
          do (grpc:send call (routeguide:make-route-note
                              :message text :location (make-place latitude longitude))))
    (grpc:close-send call)
    (grpc:do-messages (note call)
      (show "  heard \"~A\" at ~A" (routeguide:route-note-message note)
            (place-text (routeguide:route-note-location note))))))
