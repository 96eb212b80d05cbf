;;;; Two profiles side by side.

(in-package #:clgrpc.tests.profile)

(defun some-profile (&key (calls 1000) (server-ns 100000000) (extra '()))
  "A profile as JSON has it, with three subsystems."
  (base:parse-json
   (base:write-json
    `(("clgrpcProfile" . 1) ("version" . "0.1.0")
      ("cpu" ("calls" . ,calls) ("seconds" . 2d0) ("periodNs" . 250000)
             ("kernelNs" . ,(+ server-ns 50000000))
             ("areas" . ,(coerce (list* `(("name" . "server") ("ns" . ,server-ns) ("share" . 0.6d0))
                                        '(("name" . "http2") ("ns" . 50000000)
                                          ("share" . 0.3d0))
                                        extra)
                                 'vector))
             ("phases" . #()) ("functions" . #()) ("threads" . #())
             ("samples" . 600) ("source" . "perf") ("explained" . 1d0)
             ("flame" ("name" . "all") ("ns" . 150000000)))
      ("heapHistogram" ("areas" . #((("name" . "server") ("octetsPerCall" . 144d0)))))))))

(defun verdicts (before after title)
  "An alist from names to verdicts of the section TITLE of how AFTER differs from BEFORE."
  (loop for difference in (rest (assoc title (profile::all-differences before after)
                                       :test #'string=))
        collect (cons (profile::difference-name difference)
                      (profile::difference-verdict difference))))

(test a-difference-is-more-than-chance
  ;; 400 samples are 40 more or fewer by chance, and so are others
  (is (equal '(("server" . "same") ("http2" . "same"))
             (verdicts (some-profile) (some-profile :server-ns 110000000) "subsystem")))
  (is (equal '(("server" . "more") ("http2" . "same"))
             (verdicts (some-profile) (some-profile :server-ns 130000000) "subsystem")))
  (is (equal '(("server" . "less") ("http2" . "same"))
             (verdicts (some-profile) (some-profile :server-ns 70000000) "subsystem"))))

(test differences-are-a-call
  (is (equal '("less" "less")
             (mapcar #'cdr (verdicts (some-profile) (some-profile :calls 2000) "subsystem")))))

(test what-one-profile-has-alone
  (let ((other (some-profile :extra '((("name" . "tls") ("ns" . 90000000))))))
    (is (equal "more" (cdr (assoc "tls" (verdicts (some-profile) other "subsystem")
                                  :test #'string=))))
    (is (equal '(("server" . "same") ("http2" . "same") ("tls" . "less"))
               (verdicts other (some-profile) "subsystem"))
        "in the order in which the profiles name them")))

(defun rounds-profile (&rest server-ns)
  "A profile of a round for each of SERVER-NS, that of the middle one itself."
  (profile::one-of-rounds (loop for ns in server-ns collect (some-profile :server-ns ns))))

(test rounds-tell-what-is-noise
  (let ((steady (rounds-profile 100000000 101000000 99000000)))
    (is (= 3 (length (profile::member-of steady "rounds"))))
    (is (= 150000000 (profile::member-of steady "cpu" "kernelNs")) "it is the middle one")
    (is (null (profile::member-of (elt (profile::member-of steady "rounds") 0) "cpu" "flame")))
    (is (profile::member-of steady "cpu" "flame"))
    ;; three rounds have more samples than one
    (is (equal '("more" "same")
               (mapcar #'cdr (verdicts steady (rounds-profile 118000000 119000000 117000000)
                                       "subsystem"))))
    ;; as much more on average, but the rounds differ by more than that among themselves
    (is (equal '("same" "same")
               (mapcar #'cdr (verdicts steady (rounds-profile 60000000 118000000 176000000)
                                       "subsystem"))))
    ;; with one of a single round
    (is (equal '("same" "same")
               (mapcar #'cdr (verdicts (some-profile) steady "subsystem"))))
    ;; the variation of the other's rounds counts, and all of them, not the calm half
    (is (equal '("same" "same")
               (mapcar #'cdr (verdicts (some-profile)
                                       (rounds-profile 60000000 118000000 176000000)
                                       "subsystem"))))
    (is (equal '("same" "same")
               (mapcar #'cdr (verdicts (rounds-profile 85000000 85000000 85000000
                                                       115000000 115000000 115000000)
                                       (some-profile) "subsystem"))))))

(test samples-of-the-calm-half
  "The error of sampling is that of the rounds whose mean is compared."
  (flet ((six (ns) (apply #'rounds-profile (loop repeat 6 collect ns))))
    (is (equal '("same" "same")
               (mapcar #'cdr (verdicts (six 100000000) (six 107000000) "subsystem"))))
    (is (equal '("more" "same")
               (mapcar #'cdr (verdicts (six 100000000) (six 110000000) "subsystem"))))))

(test differences-as-text
  (let ((text (with-output-to-string (stream)
                (profile:write-difference (some-profile) (some-profile :server-ns 130000000)
                                          stream))))
    (dolist (part '("CPU" "150.0" "180.0" "+20.0 %" "more" "octets/call"))
      (is (search part text) "~A is missing in ~A" part text))
    (is (null (search "phase of a call" text)) "a section without differences is left out")))

(test files-that-are-no-profiles
  (uiop:with-temporary-file (:pathname path :stream stream :direction :output)
    (write-string "{\"a\":1}" stream)
    (finish-output stream)
    (signals profile:profile-error (profile:read-profile path)))
  (signals profile:profile-error (profile:read-profile "/nowhere/at/all.json")))

(test deep-stacks-are-read
  "Each frame is an object in an array."
  (let ((node '(("name" . "leaf") ("ns" . 1))))
    (loop repeat 200
          do (setf node `(("name" . "frame") ("ns" . 1) ("children" . ,(vector node)))))
    (is (equal "frame" (profile::member-of (profile::parse-profile (base:write-json node))
                                           "name")))))

(test figures-are-short
  (is (equal '("-" "7" "0.250" "150.5" "247,939" "1,000,000")
             (mapcar #'profile::figure '(nil 7 1/4 150.5d0 247939.1d0 1000000)))))
